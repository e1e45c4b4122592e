"""The MCP server on stdin and stdout: stdout carries nothing but the protocol."""

import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Any, Final, cast

import anyio
import msgspec
from anyio import to_thread
from mcp.server.stdio import stdio_server
from mcp_types import INVALID_REQUEST, PARSE_ERROR, jsonrpc_message_adapter

from perdure.serve.mcp.application import Application

_STDIN, _STDOUT, _STDERR = 0, 1, 2
ENCODING: Final = "utf-8"
CANCELLED: Final = "notifications/cancelled"
ANSWER_S: Final = 30.0  # for the requests that were read before stdin was closed


async def serve_stdio(
    application: Application, closing: anyio.Event, on_listed: Callable[[], None]
) -> None:
    """Serve one client until it closes stdin, which sets `closing`, or until that is set.

    Requests that were read by then are answered first: `closing` ends their waits. `on_listed` is
    called when the client has the list of tools.
    """

    def after_flush() -> None:
        if application.has_listed:
            on_listed()

    server = application.server
    options = server.create_initialization_options()
    stdin, stdout = _claim_streams()
    requests = _OpenRequests()
    writer = _LineWriter(stdout, requests, after_flush)
    lines = _Lines(stdin, writer, requests, closing)
    async with stdio_server(cast("Any", lines), cast("Any", writer)) as (reads, writes):
        await server.run(reads, writes, options)


def _claim_streams() -> tuple[TextIOWrapper, TextIOWrapper]:
    """Take the two streams for the protocol; whatever else writes to stdout reaches stderr."""
    read_fd, write_fd = os.dup(_STDIN), os.dup(_STDOUT)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, _STDIN)
    os.close(null)
    os.dup2(_STDERR, _STDOUT)
    stdin = open(read_fd, encoding=ENCODING, errors="replace")  # noqa: SIM115, PTH123
    return stdin, open(write_fd, "w", encoding=ENCODING, newline="\n")  # noqa: PTH123


class _Reply(msgspec.Struct):
    """The part of a line to the client that says what it answers."""

    id: str | int | None = None
    method: str | None = None


class _OpenRequests:
    """Requests without an answer."""

    def __init__(self) -> None:
        self._ids: set[str | int] = set()
        self._settled = anyio.Event()

    def add(self, message: Mapping[str, Any]) -> None:
        """Note a message of the client: a request, or the end of one, which gets no answer."""
        request_id, params = message.get("id"), message.get("params")
        if isinstance(request_id, str | int) and "method" in message:
            self._ids.add(request_id)
        elif message.get("method") == CANCELLED and isinstance(params, dict):
            self._remove(params.get("requestId"))

    def settle(self, line: str) -> None:
        """Note a line to the client."""
        with suppress(msgspec.DecodeError):
            reply = msgspec.json.decode(line, type=_Reply)
            if reply.method is None:
                self._remove(reply.id)

    def _remove(self, request_id: Any) -> None:
        if isinstance(request_id, str | int):
            self._ids.discard(request_id)
        self._settled.set()

    async def wait(self) -> None:
        """Wait until every request has its answer."""
        while self._ids:
            self._settled = anyio.Event()
            await self._settled.wait()


class _LineWriter:
    """Lines to stdout, one at a time: the SDK and the errors of bad lines share it."""

    def __init__(
        self, file: TextIOWrapper, requests: _OpenRequests, after_flush: Callable[[], None]
    ) -> None:
        self._file = file
        self._requests = requests
        self._after_flush = after_flush
        self._lines: list[str] = []  # written, not sent
        self._lock = anyio.Lock()

    async def write(self, text: str) -> None:
        """Write whole lines; a client that does not read holds up only this connection."""
        async with self._lock:
            self._lines.append(text)
            await to_thread.run_sync(self._file.write, text, abandon_on_cancel=True)

    async def flush(self) -> None:
        """Send what was written."""
        async with self._lock:
            await to_thread.run_sync(self._file.flush, abandon_on_cancel=True)
            lines, self._lines = self._lines, []
        for line in lines:
            self._requests.settle(line)
        self._after_flush()


@dataclass(frozen=True, slots=True)
class _Lines:
    """Lines of stdin; unlike the SDK's, a read can be abandoned when the server must stop.

    The SDK drops a line that is not a message; here its sender gets the protocol's error.
    """

    file: TextIOWrapper
    writer: _LineWriter
    requests: _OpenRequests
    closing: anyio.Event

    async def __aiter__(self) -> AsyncIterator[str]:
        while line := await self._next():
            message = _parse(line)
            error = _line_error(message, line)
            if error is None:
                self.requests.add(message)
                yield line
            else:
                await self.writer.write(json.dumps(error) + "\n")
                await self.writer.flush()
        self.closing.set()
        with anyio.move_on_after(ANSWER_S):
            await self.requests.wait()

    async def _next(self) -> str:
        """Return the next line; an empty text at the end, or if the server must stop."""
        line = ""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel_at_close, tasks.cancel_scope)
            line = await to_thread.run_sync(self.file.readline, abandon_on_cancel=True)
            tasks.cancel_scope.cancel()
        return line

    async def _cancel_at_close(self, scope: anyio.CancelScope) -> None:
        await self.closing.wait()
        scope.cancel()


def _parse(line: str) -> Any:
    """Return the value of a line; None if it is not JSON."""
    with suppress(ValueError, RecursionError):
        return json.loads(line)
    return None


def _line_error(message: Any, line: str) -> dict[str, Any] | None:
    """Return the error for a line that is not one message; None if it is one."""
    if message is None:
        return _error(None, PARSE_ERROR, "Parse error")
    if not isinstance(message, dict):
        text = "A line must be one JSON-RPC message; batches are not served"
        return _error(None, INVALID_REQUEST, text)
    request_id = message.get("id")
    is_id = isinstance(request_id, str | int) and not isinstance(request_id, bool)
    if "method" in message and "id" in message and not is_id:
        return _error(None, INVALID_REQUEST, "The id of a request must be text or an integer")
    try:
        jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        text = "The line is JSON, but not a JSON-RPC message"
        return _error(request_id if is_id else None, INVALID_REQUEST, text)
    return None


def _error(request_id: str | int | None, code: int, text: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": text}}
