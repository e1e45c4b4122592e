"""Reader of server-sent events of an application in this process, without buffering."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import anyio


@dataclass(frozen=True)
class Sent:
    """Block of the stream as an EventSource reads it; without data it only sets the last id."""

    event: str = ""
    data: Any = None
    id: str | None = None
    is_comment: bool = False


class Reader:
    """Reader of the blocks of one stream."""

    def __init__(self, room: float = float("inf")) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.gone = anyio.Event()
        self.ended = anyio.Event()
        self._send, self._blocks = anyio.create_memory_object_stream[bytes](room)
        self._text = b""

    async def sent(self, message: Any) -> None:
        """Receive an ASGI message of the application."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            return
        *blocks, self._text = (self._text + message.get("body", b"")).split(b"\n\n")
        for block in blocks:
            await self._send.send(block)
        if not message.get("more_body", False):
            self.ended.set()
            self._send.close()

    def close(self) -> None:
        """Stop reading."""
        self._send.close()
        self._blocks.close()

    async def block(self) -> Sent:
        """Return the next block."""
        with anyio.fail_after(5):
            return _parsed(await self._blocks.receive())

    async def next(self) -> Sent:
        """Return the next block with data."""
        while True:
            one = await self.block()
            if one.data is not None:
                return one

    async def until(self, event: str) -> list[Sent]:
        """Return the events up to the first of that name."""
        found = [await self.next()]
        while found[-1].event != event:
            found.append(await self.next())
        return found


def _parsed(block: bytes) -> Sent:
    found: dict[str, Any] = {}
    for line in block.decode().split("\n"):
        name, _, value = line.partition(":")
        found[name] = value.removeprefix(" ")
    data = json.loads(found["data"]) if "data" in found else None
    return Sent(found.get("event", ""), data, found.get("id"), is_comment="" in found)


@asynccontextmanager
async def reading(
    app: Any, path: str, *, as_: str = "admin", room: float = float("inf"), **headers: str
) -> AsyncIterator[Reader]:
    """Follow a path; leaving the block disconnects the client."""
    reader = Reader(room)
    where, _, query = path.partition("?")
    given = {
        "host": "perdure",
        "accept": "text/event-stream",
        "authorization": f"Bearer {as_}-token",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": unquote(where),
        "raw_path": where.encode(),
        "query_string": query.encode(),
        "headers": [(k.lower().encode(), v.encode()) for k, v in given.items()],
        "client": ("127.0.0.1", 5),
        "server": ("perdure", 80),
        "root_path": "",
    }
    asked = False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await reader.gone.wait()
        return {"type": "http.disconnect"}

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(app, scope, receive, reader.sent)
        try:
            yield reader
        finally:
            reader.gone.set()
            reader.close()
            tasks.cancel_scope.cancel()
