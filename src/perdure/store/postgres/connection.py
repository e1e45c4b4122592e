"""Connections to PostgreSQL with our settings, and what its errors mean."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from types import ModuleType
from typing import Any, Final, Protocol, TypeVar

import anyio

from perdure.errors import ConfigError, StoreError
from perdure.store.postgres.errors import (
    explained,
    is_broken,
    is_database_error,
    is_misconfigured,
    may_go_again,
)
from perdure.store.postgres.url import Address

T = TypeVar("T")

CONNECT_S: Final = 10.0
COMMAND_S: Final = 30.0
# A peer that vanished is noticed after about ten seconds, whether or not something was sent to it.
_KEEPALIVE: Final = (
    ("TCP_KEEPIDLE", 5),
    ("TCP_KEEPINTVL", 2),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 11_000),  # ms
)

# What must hold in every transaction, whatever the defaults of the server or the role.
# A stopped client must not keep its row locks: the server frees them. All statements are made for
# their indexes: a plan that was made on an empty table and kept must not walk over a large one.
_SETTINGS: Final = {
    "idle_in_transaction_session_timeout": "2s",
    "lock_timeout": "5s",
    "statement_timeout": f"{COMMAND_S:.0f}s",
    "jit": "off",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}


class AsyncpgConnection(Protocol):
    """What is used of a connection of asyncpg."""

    async def execute(self, sql: str, *args: Any) -> str:
        """Run it; without arguments it may be several statements. Answers the last one's tag."""
        ...

    async def fetch(self, sql: str, *args: Any) -> Sequence[Any]:
        """All rows."""
        ...

    async def fetchrow(self, sql: str, *args: Any) -> Any:
        """The first row, or None."""
        ...

    async def fetchval(self, sql: str, *args: Any) -> Any:
        """The first value of the first row, or None."""
        ...

    async def add_listener(self, channel: str, heard: Callable[..., None]) -> None:
        """LISTEN, and call it with (connection, pid, channel, payload)."""
        ...

    def add_termination_listener(self, ended: Callable[..., None]) -> None:
        """Call it with the connection once that has ended."""
        ...

    def is_closed(self) -> bool:
        """Whether it has ended."""
        ...

    def get_server_pid(self) -> int:
        """The process that serves it."""
        ...

    async def close(self, *, timeout: float) -> None:  # noqa: ASYNC109 - asyncpg's own name
        """Say goodbye."""
        ...

    def terminate(self) -> None:
        """Cut it."""
        ...


class PooledConnection:
    """One connection; used by one task at a time."""

    def __init__(self, connection: AsyncpgConnection, begin: str, *, is_pooled: bool) -> None:
        self.connection = connection
        self._begin = begin
        # A pooled one has our settings inside a transaction only, so each statement is in one.
        self._needs_transaction = is_pooled

    async def begin(self) -> None:
        """Begin a transaction."""
        await self.connection.execute(self._begin)

    async def commit(self) -> str:
        """End it; what the server says it did."""
        return await self.connection.execute("COMMIT")

    async def roll_back(self) -> None:
        """Undo it; a connection that cannot do this is of no use."""
        try:
            await self.connection.execute("ROLLBACK")
        except Exception:  # noqa: BLE001 - whatever it is, the server undoes what nobody commits
            self.connection.terminate()

    async def undo(self, error: BaseException) -> None:
        """Undo it after an error; one that broke the connection has done so already."""
        if is_broken(error):
            self.connection.terminate()
        else:
            await self.roll_back()

    async def fetch(self, sql: str, *args: Any) -> Sequence[Any]:
        """All rows of a statement that is a transaction of its own."""
        if not self._needs_transaction:
            return await self.connection.fetch(sql, *args)
        async with self.transaction() as connection:
            return await connection.fetch(sql, *args)

    async def fetchrow(self, sql: str, *args: Any) -> Any:
        """The first row of such a statement, or None."""
        rows = await self.fetch(sql, *args)
        return rows[0] if rows else None

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncpgConnection]:
        """Commit at the end, or undo; an error of COMMIT itself comes out as it is."""
        await self.begin()
        try:
            yield self.connection
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await self.undo(error)
            raise
        await self.commit()

    async def close(self) -> None:
        """End the connection."""
        with suppress(Exception):
            await self.connection.close(timeout=1.0)


class Connector:
    """Makes connections to one database."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._asyncpg: ModuleType | None = None

    async def line(self, *, synced: bool = True, patient: bool = False) -> PooledConnection:
        """A new connection; raises StoreError.

        Without `synced` its commits are not on the disk when they are answered: for what is
        forgotten with its process, or carried along by the next commit that is synced. A `patient`
        one waits for its statements as long as they take.
        """
        pooled = self.address.is_pooled
        settings = self._settings(synced=synced)
        if patient:
            settings["statement_timeout"] = "0"
        more: dict[str, Any] = (
            {"statement_cache_size": 0}
            if pooled
            else {"server_settings": settings, "max_cached_statement_lifetime": 0}
        )
        connection = await self._connected(None if patient else COMMAND_S, **more)
        _keep_alive(connection)
        begin = "BEGIN ISOLATION LEVEL READ COMMITTED"
        if pooled:
            begin = ";".join([begin, *(f"SET LOCAL {n} = '{v}'" for n, v in settings.items())])
        return PooledConnection(connection, begin, is_pooled=pooled)

    async def plain(self) -> AsyncpgConnection:
        """A new connection with the settings that the server has for everybody."""
        connection: AsyncpgConnection = await self._connected(COMMAND_S, statement_cache_size=0)
        return connection

    async def _connected(self, command_s: float | None, **more: Any) -> Any:
        connect = self._module().connect
        self.address.check_files()
        try:
            return await connect(
                self.address.dsn, timeout=CONNECT_S, command_timeout=command_s, **more
            )
        except Exception as error:
            if is_misconfigured(error):
                raise ConfigError(
                    f"the URL of {self.address.where} makes no sense: {error}",
                    hint="see docs/postgres.md for what it may say",
                ) from error
            raise self.explained(error) from error

    def explained(self, error: Exception) -> StoreError:
        """What an error of the database or the network means for the caller, in one line."""
        if isinstance(error, StoreError):
            return type(error)(error.message, hint=error.hint, code=error.code)
        return explained(error, self.address.where)

    def _settings(self, *, synced: bool) -> dict[str, str]:
        return {
            **_SETTINGS,
            "search_path": self.address.schema,
            "synchronous_commit": "on" if synced else "off",
            "default_transaction_isolation": "read committed",
        }

    def _module(self) -> ModuleType:
        if self._asyncpg is None:
            try:
                import asyncpg
            except ImportError:
                raise ConfigError(
                    "a PostgreSQL store needs asyncpg, which is not installed",
                    code="NOT_INSTALLED",
                    hint="pip install 'perdure[postgres]'",
                ) from None
            self._asyncpg = asyncpg
        return self._asyncpg


def _keep_alive(connection: Any) -> None:
    """Notice a peer that vanished without a word; there is nothing to set on a unix socket."""
    transport = getattr(connection, "_transport", None)
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or sock.family == getattr(socket, "AF_UNIX", None):
        return
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Pool:
    """Connections of one kind."""

    def __init__(self, dial: Connector, most: int, *, synced: bool = True) -> None:
        self._dial = dial
        self._synced = synced
        self._places = asyncio.Semaphore(most)
        self._most = most
        self._idle: list[PooledConnection] = []

    def keep(self, line: PooledConnection) -> None:
        """A connection that is there already."""
        self._idle.append(line)

    @asynccontextmanager
    async def line(self) -> AsyncIterator[PooledConnection]:
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

    async def ask(self, question: Callable[[PooledConnection], Awaitable[T]]) -> T:
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

    async def _ask(self, question: Callable[[PooledConnection], Awaitable[T]]) -> T:
        async with self.line() as line:
            return await question(line)

    def _kept(self) -> PooledConnection | None:
        while self._idle:
            line = self._idle.pop()
            if not line.connection.is_closed():
                return line
        return None
