"""HTTP side of the endpoint: sends a verdict complete, streamed, or broken off."""

import socket
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from itertools import islice
from typing import Any, Final

from perdure.testing.endpoint.exchange import ScriptedResponse, StreamEvent, dumps
from perdure.testing.endpoint.failures import error_body
from perdure.testing.endpoint.judge import DIALECTS, RequestVerdict
from perdure.testing.endpoint.script import Failure
from perdure.testing.provider_rules import Format

_PATHS: Final[Mapping[str, Format]] = {
    "/messages": "anthropic",
    "/chat/completions": "openai-chat",
    "/responses": "openai-responses",
}
_END: Final = b"0\r\n\r\n"


class EndpointHandler(BaseHTTPRequestHandler):
    """Connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Any  # an EndpointServer

    def do_POST(self) -> None:
        """Respond to a request for a turn."""
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        path = self.path.partition("?")[0].removeprefix("/v1")
        if path not in _PATHS:
            self._send(404, b'{"error": {"message": "unknown path"}}')
            return
        verdict: RequestVerdict = self.server.endpoint.judge(raw, _PATHS[path], self._key())
        if verdict.response is None:
            self._refuse(verdict)
        elif verdict.is_streamed:
            self._stream(verdict, verdict.response)
        else:
            self._send_response(verdict, verdict.response)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the library calls it
        """Suppress the library's log; the endpoint has its own."""

    def _key(self) -> str:
        bearer = self.headers.get("authorization", "").removeprefix("Bearer ")
        return self.headers.get("x-api-key") or bearer

    def _refuse(self, verdict: RequestVerdict) -> None:
        error = verdict.error
        assert error is not None
        if verdict.failure is not None and isinstance(verdict.failure.name, int):
            self._send(error.status, b"<html>not JSON, as a proxy responds</html>", error.headers)
            return
        body = dumps(error_body(error, verdict.format, verdict.number)).encode()
        self._send(error.status, body, error.headers)

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self._head(status, {"content-length": str(len(body)), **(headers or {})})
        self.wfile.write(body)

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _send_response(self, verdict: RequestVerdict, response: ScriptedResponse) -> None:
        body = dumps(DIALECTS[verdict.format].render(response)).encode()
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
                self.server.endpoint.record_sent(verdict)
                self._send(200, body)

    def _stream(self, verdict: RequestVerdict, response: ScriptedResponse) -> None:
        if verdict.failure is not None and verdict.failure.name == "drop":
            self._break()
            return
        type_ = "text/event-stream; charset=utf-8"
        self._head(200, {"content-type": type_, "transfer-encoding": "chunked"})
        events = DIALECTS[verdict.format].stream(response)
        if verdict.failure is None or self._fail(verdict, verdict.failure, events):
            *chunks, last = [event.encode() for event in events]
            for chunk in chunks:
                self._chunk(chunk)
            # before the last chunk: the client may send its next request as soon as it has it
            self.server.endpoint.record_sent(verdict)
            self._chunk(last)
            self.wfile.write(_END)

    def _fail(
        self, verdict: RequestVerdict, failure: Failure, events: Iterator[StreamEvent]
    ) -> bool:
        """Send the events before the failure, then fail; return True if the stream continues."""
        for event in islice(events, failure.after or 0):
            self._chunk(event.encode())
        match failure.name:
            case "cut":
                self._break()
            case "half_json":
                encoded = next(events).encode()
                self._chunk(encoded[: len(encoded) * 2 // 3] + b"\n\n")
                self.wfile.write(_END)
            case "stall":
                self.server.endpoint.stall()
                return True
            case _:
                self._send_error_event(verdict, failure.after or 0)
        return False

    def _send_error_event(self, verdict: RequestVerdict, after: int) -> None:
        assert verdict.error is not None
        assert verdict.response is not None
        body = error_body(verdict.error, verdict.format, verdict.number)
        self._chunk(DIALECTS[verdict.format].error_event(verdict.response, body, after).encode())
        self.wfile.write(_END)

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _break(self) -> None:
        """Close the connection."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
