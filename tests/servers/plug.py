"""A cable between clients and a PostgreSQL server that a test can pull, at the worst moment too."""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, Literal

COMMIT: Final = b"COMMIT\0"  # how the server is told to

# The server does not get the question and the client a reset; or the server gets it, and instead of
# the answer the client gets a reset, or nothing for ever.
Loss = Literal["question", "answer", "silence"]


class Plug:
    """Passes everything on, until it is told not to."""

    def __init__(self, port: int) -> None:
        self.lost: list[Loss] = []  # what was lost so far
        self._port = port
        self._losing: deque[Loss | None] = deque()
        self._wires: dict[_Wire, asyncio.Future[tuple[None, None]]] = {}
        self._flows = asyncio.Event()
        self._flows.set()

    def lose(self, *what: Loss | None) -> None:
        """Lose this of the next COMMITs, one of each; None: nothing."""
        self._losing.extend(what)

    def forget(self) -> None:
        """Lose nothing of what comes."""
        self._losing.clear()

    def cut(self) -> None:
        """Reset every connection."""
        for wire in list(self._wires):
            wire.reset()

    def stall(self) -> None:
        """Take connections and what comes on them, and pass nothing on; `flow` ends it."""
        self._flows.clear()

    def flow(self) -> None:
        """Go on."""
        self._flows.set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its beginning to its end."""
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        wire = _Wire(writer, back)
        both = asyncio.gather(self._ask(wire, reader), self._answer(wire, there))
        self._wires[wire] = both
        try:
            with suppress(OSError, asyncio.CancelledError):
                await both
        finally:
            del self._wires[wire]
            wire.reset()

    def end(self) -> None:
        """Carry nothing any more."""
        for both in self._wires.values():
            both.cancel()

    async def _ask(self, wire: "_Wire", reader: asyncio.StreamReader) -> None:
        while said := await reader.read(65536):
            await self._flows.wait()
            if self._losing and COMMIT in said:
                wire.loses = self._losing.popleft()
            if wire.loses is not None:
                self.lost.append(wire.loses)
            if wire.loses == "question":
                break
            wire.server.write(said)
            await wire.server.drain()
        if wire.loses != "answer":
            wire.reset()

    async def _answer(self, wire: "_Wire", reader: asyncio.StreamReader) -> None:
        while said := await reader.read(65536):
            await self._flows.wait()
            if wire.loses == "answer":
                break
            if wire.loses is None:
                wire.client.write(said)
                await wire.client.drain()
        wire.reset()


class _Wire:
    """One connection."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.loses: Loss | None = None

    def reset(self) -> None:
        """End both sides as a machine does that knows nothing of them any more."""
        for writer in (self.client, self.server):
            with suppress(OSError):
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


@asynccontextmanager
async def plugged(url: str) -> AsyncIterator[tuple[Plug, str]]:
    """A cable to the server of a URL, and the URL of the same database through it."""
    before, _, after = url.rpartition(":")
    port, _, database = after.partition("/")
    plug = Plug(int(port))
    listening = await asyncio.start_server(plug.carry, "127.0.0.1", 0)
    try:
        yield plug, f"{before}:{listening.sockets[0].getsockname()[1]}/{database}"
    finally:
        listening.close()
        plug.end()
