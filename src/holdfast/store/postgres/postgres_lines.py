"""A few connections that are opened when wanted, each used by one task at a time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from holdfast.errors import StoreError
from holdfast.store.postgres.connection import Dial, Line
from holdfast.store.postgres.errors import is_broken, is_database_error, may_go_again

T = TypeVar("T")


class Lines:
    """Connections of one kind."""

    def __init__(self, dial: Dial, most: int, *, synced: bool = True) -> None:
        self._dial = dial
        self._synced = synced
        self._places = asyncio.Semaphore(most)
        self._most = most
        self._idle: list[Line] = []

    def keep(self, line: Line) -> None:
        """A connection that is there already."""
        self._idle.append(line)

    @asynccontextmanager
    async def line(self) -> AsyncIterator[Line]:
        """A connection; kept for the next one unless it broke or its task was cancelled."""
        async with self._places:
            line = self._kept() or await self._dial.line(synced=self._synced)
            try:
                yield line
            except BaseException as error:
                if isinstance(error, Exception) and not is_broken(error):
                    self._idle.append(line)
                else:
                    line.connection.terminate()
                raise
            self._idle.append(line)

    async def ask(self, question: Callable[[Line], Awaitable[T]]) -> T:
        """The answer to a question that may be asked twice, since a connection may have broken."""
        try:
            try:
                return await self._ask(question)
            except Exception as error:
                if not may_go_again(error):
                    raise
                return await self._ask(question)
        except StoreError:
            raise
        except Exception as error:
            if is_database_error(error):
                raise self._dial.explained(error) from error
            raise

    async def close(self) -> None:
        """Close them all, once nobody uses one."""
        for _ in range(self._most):
            await self._places.acquire()
        while self._idle:
            await self._idle.pop().close()
        for _ in range(self._most):
            self._places.release()

    async def _ask(self, question: Callable[[Line], Awaitable[T]]) -> T:
        async with self.line() as line:
            return await question(line)

    def _kept(self) -> Line | None:
        while self._idle:
            line = self._idle.pop()
            if not line.connection.is_closed():
                return line
        return None
