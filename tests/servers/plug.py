"""Proxy between clients and a PostgreSQL server that a test can interrupt at any moment."""

import asyncio
import re
import socket
import struct
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, Literal

COMMIT: Final = b"COMMIT\0"  # the COMMIT message of the protocol
# The message that prepares the statement which is a whole commit, and the one that runs it.
PREPARED: Final = re.compile(rb"(__asyncpg_stmt_\w+__)\0-- All changes of a batch")
READY: Final = b"Z\0\0\0\5"  # with which the server ends every round trip

# The request is lost and the client gets a reset; or the server gets it, and instead of the
# response the client gets a reset, or nothing.
Loss = Literal["question", "answer", "silence"]


class Plug:
    """Proxy that forwards everything until the test interrupts it."""

    def __init__(self, port: int) -> None:
        self.lost: list[Loss] = []  # losses so far
        self._port = port
        self._losing: deque[Loss | None] = deque()
        self.round_trips: Counter[int] = Counter()  # by connection
        self._wires: dict[_Wire, asyncio.Future[tuple[None, None]]] = {}
        self._flows = asyncio.Event()
        self._flows.set()

    def lose(self, *what: Loss | None) -> None:
        """Lose these parts of the next commits, one each; None loses nothing."""
        self._losing.extend(what)

    def forget(self) -> None:
        """Lose nothing from now on."""
        self._losing.clear()

    def cut(self) -> None:
        """Reset every connection."""
        for wire in list(self._wires):
            wire.reset()

    def stall(self) -> None:
        """Accept connections and data, but forward nothing, until `flow`."""
        self._flows.clear()

    def flow(self) -> None:
        """Forward again."""
        self._flows.set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, from its beginning to its end."""
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
        """Close the proxy."""
        for both in self._wires.values():
            both.cancel()

    async def _ask(self, wire: "_Wire", reader: asyncio.StreamReader) -> None:
        while said := await reader.read(65536):
            await self._flows.wait()
            if wire.commits(said) and self._losing:
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
            self.round_trips[id(wire)] += said.count(READY)
            if wire.loses == "answer":
                break
            if wire.loses is None:
                wire.client.write(said)
                await wire.client.drain()
        wire.reset()


class _Wire:
    """Connection through the proxy."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.loses: Loss | None = None
        self._runs_commit: set[bytes] = set()

    def commits(self, said: bytes) -> bool:
        """Return whether the client asks for a commit, by COMMIT or by a statement of its own."""
        self._runs_commit |= {b"\0%b\0" % name for name in PREPARED.findall(said)}
        return COMMIT in said or any(run in said for run in self._runs_commit)

    def reset(self) -> None:
        """Reset both sides."""
        for writer in (self.client, self.server):
            with suppress(OSError):
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


@asynccontextmanager
async def plugged(url: str) -> AsyncIterator[tuple[Plug, str]]:
    """Yield a proxy to the server of a URL, and the URL of the same database through it."""
    before, _, after = url.rpartition(":")
    port, _, database = after.partition("/")
    plug = Plug(int(port))
    listening = await asyncio.start_server(plug.carry, "127.0.0.1", 0)
    try:
        yield plug, f"{before}:{listening.sockets[0].getsockname()[1]}/{database}"
    finally:
        listening.close()
        plug.end()
