"""Fake Gemini on loopback: it streams a script and refuses what Gemini refuses.

Turn *k* responds to the request whose history has *k* responses. A part that comes back without
its signature, or changed, is refused.
"""

import json
import threading
from base64 import urlsafe_b64decode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

Json = dict[str, Any]


@dataclass
class Gemini:
    """Script of the fake, and the requests it received."""

    turns: Sequence[list[Json]]
    url: str = ""
    asked: list[int] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    fail_next: list[Json] = field(default_factory=list)

    def judge(self, body: Json) -> tuple[int, str | None]:
        """Return the requested turn, and the reason for a refusal."""
        contents = body["contents"]
        told = [one for one in contents if one["role"] == "model"]
        wrong = self._wrong(contents, told)
        if wrong is not None:
            self.refused.append(wrong)
        self.asked.append(len(told))
        return len(told), wrong

    def _wrong(self, contents: list[Json], told: list[Json]) -> str | None:
        roles = [one["role"] for one in contents]
        if roles[:1] != ["user"] or roles[-1:] != ["user"]:
            return "Please ensure that the conversation starts and ends with a user turn."
        for one, after in pairwise(contents):
            calls = [part for part in one["parts"] if "functionCall" in part]
            results = [part for part in after["parts"] if "functionResponse" in part]
            if one["role"] == "model" and len(calls) != len(results):
                return "the number of function response parts must equal that of the calls."
        for given, sent in zip(told, self.turns, strict=False):
            for part, wanted in zip(_repeatable(given["parts"]), _repeatable(sent), strict=True):
                if _signature(part) != _signature(wanted):
                    return f"missing a thought_signature in {wanted}: {part}"
                if _said(part) != _said(wanted):
                    return f"{part} is not {wanted}"
        return None


def _repeatable(parts: list[Json]) -> list[Json]:
    """Drop thoughts, which need not come back; their signatures must."""
    return [part for part in parts if not part.get("thought")]


def _signature(part: Json) -> bytes:
    """Return the bytes of a signature in either base64 alphabet."""
    text = part.get("thoughtSignature") or ""
    return urlsafe_b64decode(text.replace("+", "-").replace("/", "_"))


def _said(part: Json) -> str:
    call = part.get("functionCall", {})
    return json.dumps([part.get("text"), call.get("name"), call.get("args")])


class _Handler(BaseHTTPRequestHandler):
    server: "_Server"

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        gemini = self.server.gemini
        turn, wrong = gemini.judge(json.loads(self.rfile.read(length)))
        if wrong is not None or gemini.fail_next:
            error: Json = {"code": 400, "message": wrong, "status": "INVALID_ARGUMENT"}
            if wrong is None:
                error = gemini.fail_next.pop(0)
            self._send(json.dumps({"error": error}), error["code"])
            return
        parts = gemini.turns[turn]
        said = [{"content": {"role": "model", "parts": [part]}, "index": 0} for part in parts]
        said[-1]["finishReason"] = "STOP"
        used = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
        events = [{"candidates": [one], "usageMetadata": used} for one in said]
        text = "".join(f"data: {json.dumps(event)}\r\n\r\n" for event in events)
        self._send(text, 200, "text/event-stream")

    def _send(self, text: str, status: int, kind: str = "application/json") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, gemini: Gemini) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.gemini = gemini


@contextmanager
def fake_gemini(turns: Sequence[list[Json]]) -> Iterator[Gemini]:
    """Run a fake Gemini that plays these turns while the block runs."""
    gemini = Gemini(turns)
    server = _Server(gemini)
    gemini.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield gemini
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
