"""The wire: what a verdict is in HTTP, whole, in pieces, or broken off."""

import socket
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from itertools import islice
from typing import Any, Final

from perdure.testing.endpoint.failures import body_of
from perdure.testing.endpoint.judging import DIALECTS
from perdure.testing.endpoint.play import Event, Play, dumps
from perdure.testing.endpoint.script import Failure
from perdure.testing.endpoint.verdict import Verdict
from perdure.testing.provider_rules import Format

_PATHS: Final[Mapping[str, Format]] = {
    "/messages": "anthropic",
    "/chat/completions": "openai-chat",
    "/responses": "openai-responses",
}
_END: Final = b"0\r\n\r\n"


class Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Any  # the Server, which has the endpoint

    def do_POST(self) -> None:
        """Answer a request for a turn."""
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        path = self.path.partition("?")[0].removeprefix("/v1")
        if path not in _PATHS:
            self._send(404, b'{"error": {"message": "there is no such path here"}}')
            return
        verdict: Verdict = self.server.endpoint.judge(raw, _PATHS[path], self._key())
        if verdict.play is None:
            self._refuse(verdict)
        elif verdict.is_streamed:
            self._stream(verdict, verdict.play)
        else:
            self._whole(verdict, verdict.play)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the library calls it
        """Say nothing: the log is the endpoint's."""

    def _key(self) -> str:
        bearer = self.headers.get("authorization", "").removeprefix("Bearer ")
        return self.headers.get("x-api-key") or bearer

    def _refuse(self, verdict: Verdict) -> None:
        wrong = verdict.problem
        assert wrong is not None
        if verdict.failure is not None and isinstance(verdict.failure.name, int):
            self._send(wrong.status, b"<html>no JSON: something in between</html>", wrong.headers)
            return
        body = dumps(body_of(wrong, verdict.format, verdict.number)).encode()
        self._send(wrong.status, body, wrong.headers)

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self._head(status, {"content-length": str(len(body)), **(headers or {})})
        self.wfile.write(body)

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _whole(self, verdict: Verdict, play: Play) -> None:
        body = dumps(DIALECTS[verdict.format].whole(play)).encode()
        half = body[: len(body) // 2]
        match verdict.failure and verdict.failure.name:
            case "drop":
                self._break()
            case "cut":
                self._head(200, {"content-length": str(len(body))})
                self.wfile.write(half)
                self._break()
            case "half_json":
                self._send(200, half)
            case "stall":
                self.server.endpoint.stall()
                self._send(200, body)
            case _:
                self.server.endpoint.sent(verdict)
                self._send(200, body)

    def _stream(self, verdict: Verdict, play: Play) -> None:
        if verdict.failure is not None and verdict.failure.name == "drop":
            self._break()
            return
        type_ = "text/event-stream; charset=utf-8"
        self._head(200, {"content-type": type_, "transfer-encoding": "chunked"})
        events = DIALECTS[verdict.format].events(play)
        if verdict.failure is None or self._fail(verdict, verdict.failure, events):
            rest = [event.encoded() for event in events]
            for event in rest[:-1]:
                self._chunk(event)
            self.server.endpoint.sent(verdict)  # the client may ask again as soon as it has all
            self._chunk(rest[-1])
            self.wfile.write(_END)

    def _fail(self, verdict: Verdict, failure: Failure, events: Iterator[Event]) -> bool:
        """Send what comes before the failure, then fail; true if the rest follows all the same."""
        for event in islice(events, failure.after or 0):
            self._chunk(event.encoded())
        match failure.name:
            case "cut":
                self._break()
            case "half_json":
                encoded = next(events).encoded()
                self._chunk(encoded[: len(encoded) * 2 // 3] + b"\n\n")
                self.wfile.write(_END)
            case "stall":
                self.server.endpoint.stall()
                return True
            case _:
                self._say_failed(verdict, failure.after or 0)
        return False

    def _say_failed(self, verdict: Verdict, after: int) -> None:
        assert verdict.problem is not None
        assert verdict.play is not None
        body = body_of(verdict.problem, verdict.format, verdict.number)
        self._chunk(DIALECTS[verdict.format].failed(verdict.play, body, after).encoded())
        self.wfile.write(_END)

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _break(self) -> None:
        """Close the line in the middle."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
