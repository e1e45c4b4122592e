"""Connections to PostgreSQL with our settings, and pools of them."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from types import ModuleType
from typing import Any, Final, Protocol, TypeVar

import anyio

from perdure.errors import ConfigError, StoreError
from perdure.store.postgres.errors import (
    explain_error,
    is_broken,
    is_database_error,
    is_misconfigured,
    is_retryable,
)
from perdure.store.postgres.url import PostgresAddress

T = TypeVar("T")

CONNECT_S: Final = 10.0
COMMAND_S: Final = 30.0
_CLOSE_S: Final = 1.0
# A peer that vanished is detected after about ten seconds, whether or not data was sent to it.
_KEEPALIVE: Final = (
    ("TCP_KEEPIDLE", 5),
    ("TCP_KEEPINTVL", 2),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 11_000),  # ms
)

# Settings of every transaction, whatever the defaults of the server or the role. The server must
# free the row locks of a stopped client. All statements are written for their indexes: a plan that
# was cached while a table was empty must not scan it when it is large, and no plan is made again
# for the values of a call: to plan the statement of a commit takes longer than to run it.
_SETTINGS: Final = {
    "idle_in_transaction_session_timeout": "2s",
    "lock_timeout": "5s",
    "statement_timeout": f"{COMMAND_S:.0f}s",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}


class AsyncpgConnection(Protocol):
    """The methods of an asyncpg connection that the store uses."""

    async def execute(self, sql: str, *args: Any) -> str:
        """Run statements (several only without arguments); returns the tag of the last one."""
        ...

    async def fetch(self, sql: str, *args: Any) -> Sequence[Any]:
        """Return all rows."""
        ...

    async def fetchrow(self, sql: str, *args: Any) -> Any:
        """Return the first row, or None."""
        ...

    async def fetchval(self, sql: str, *args: Any) -> Any:
        """Return the first value of the first row, or None."""
        ...

    async def add_listener(self, channel: str, callback: Callable[..., None]) -> None:
        """LISTEN, and call the callback with (connection, pid, channel, payload)."""
        ...

    def add_termination_listener(self, callback: Callable[..., None]) -> None:
        """Call the callback with the connection when it ends."""
        ...

    def is_closed(self) -> bool:
        """Return whether the connection has ended."""
        ...

    def get_server_pid(self) -> int:
        """Return the id of the server process of this connection."""
        ...

    async def close(self, *, timeout: float) -> None:  # noqa: ASYNC109 - asyncpg's own name
        """Close the connection in good order."""
        ...

    def terminate(self) -> None:
        """Close the connection at once."""
        ...


class PooledConnection:
    """Connection that one task at a time uses."""

    def __init__(self, connection: AsyncpgConnection, begin: str, *, is_pooled: bool) -> None:
        self.raw = connection
        self._begin = begin
        # Behind a pooler our settings hold inside a transaction only, so each statement needs one.
        self.needs_transaction = is_pooled

    async def begin(self) -> None:
        """Begin a transaction."""
        await self.raw.execute(self._begin)

    async def commit(self) -> str:
        """Commit the transaction and return the server's tag."""
        return await self.raw.execute("COMMIT")

    async def roll_back(self) -> None:
        """Roll back the transaction, or close a connection that cannot do that."""
        try:
            await self.raw.execute("ROLLBACK")
        except Exception:  # noqa: BLE001 - the server rolls back what is not committed
            self.raw.terminate()

    async def recover_from(self, error: BaseException) -> None:
        """Roll back after an error, or close the connection if the error broke it."""
        if is_broken(error):
            self.raw.terminate()
        else:
            await self.roll_back()

    async def fetch(self, sql: str, *args: Any) -> Sequence[Any]:
        """Run a statement as a transaction of its own and return all rows."""
        if not self.needs_transaction:
            return await self.raw.fetch(sql, *args)
        async with self.transaction() as connection:
            return await connection.fetch(sql, *args)

    async def fetchrow(self, sql: str, *args: Any) -> Any:
        """Run a statement as a transaction of its own and return the first row, or None."""
        rows = await self.fetch(sql, *args)
        return rows[0] if rows else None

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncpgConnection]:
        """Commit at the end, or roll back after an error; an error of COMMIT is not wrapped."""
        await self.begin()
        try:
            yield self.raw
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await self.recover_from(error)
            raise
        await self.commit()

    async def close(self) -> None:
        """Close the connection."""
        with suppress(Exception):
            await self.raw.close(timeout=1.0)


class Connector:
    """Opens connections to one database."""

    def __init__(self, address: PostgresAddress) -> None:
        self.address = address
        self._asyncpg: ModuleType | None = None
        self._opening: set[asyncio.Task[Any]] = set()

    async def connect(self, *, synced: bool = True, patient: bool = False) -> PooledConnection:
        """Open a connection. Raises StoreError.

        Without `synced` the server replies before a commit is on disk: for rows that end with
        their process, or that the next synced commit makes durable. A `patient` connection has no
        statement timeout.
        """
        pooled = self.address.is_pooled
        settings = self._settings(synced=synced)
        if patient:
            settings["statement_timeout"] = "0"
        options: dict[str, Any] = (
            {"statement_cache_size": 0}
            if pooled
            else {"server_settings": settings, "max_cached_statement_lifetime": 0}
        )
        connection = await self._open(None if patient else COMMAND_S, **options)
        _keep_alive(connection)
        begin = "BEGIN ISOLATION LEVEL READ COMMITTED"
        if pooled:
            begin = ";".join([begin, *(f"SET LOCAL {n} = '{v}'" for n, v in settings.items())])
        return PooledConnection(connection, begin, is_pooled=pooled)

    async def connect_plain(self) -> AsyncpgConnection:
        """Open a connection with the server's own settings."""
        connection: AsyncpgConnection = await self._open(COMMAND_S, statement_cache_size=0)
        return connection

    async def _open(self, command_s: float | None, **options: Any) -> Any:
        connect = self._module().connect
        self.address.check_files()
        try:
            return await self._shielded(
                connect(self.address.dsn, timeout=CONNECT_S, command_timeout=command_s, **options)
            )
        except Exception as error:
            if is_misconfigured(error):
                raise ConfigError(
                    f"the URL of {self.address.where} is invalid: {error}",
                    hint="docs/postgres.md describes its format",
                ) from error
            raise self.explain(error) from error

    async def _shielded(self, connect: Coroutine[Any, Any, Any]) -> Any:
        """Await a connection; if the caller is cancelled, it is opened all the same and then ended.

        The driver, cancelled at the wrong moment, leaves an error that nobody retrieves, which the
        event loop then logs with its traceback.
        """
        task = asyncio.get_running_loop().create_task(connect)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_terminate)
            raise

    async def close(self) -> None:
        """Wait a moment for connections that are being opened for callers that were cancelled."""
        if self._opening:
            await asyncio.wait([*self._opening], timeout=_CLOSE_S)

    def explain(self, error: Exception) -> StoreError:
        """Map an error of the database or the network to our error tree; one of ours is copied."""
        if isinstance(error, StoreError):
            return type(error)(error.message, hint=error.hint, code=error.code)
        return explain_error(error, self.address.where)

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


def _terminate(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().terminate()


def _keep_alive(connection: Any) -> None:
    """Detect a peer that vanished; a Unix socket needs no such options."""
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
    """Pool of connections of one kind."""

    def __init__(self, connector: Connector, most: int, *, synced: bool = True) -> None:
        self._connector = connector
        self._synced = synced
        self._slots = asyncio.Semaphore(most)
        self._most = most
        self._idle: list[PooledConnection] = []

    def add(self, connection: PooledConnection) -> None:
        """Add a connection that is already open."""
        self._idle.append(connection)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[PooledConnection]:
        """Lend a connection, which returns to the pool unless it broke or its task is cancelled."""
        async with self._slots:
            connection = self._idle_connection() or await self._connector.connect(
                synced=self._synced
            )
            try:
                yield connection
            except BaseException as error:
                if isinstance(error, Exception) and not is_broken(error):
                    self._idle.append(connection)
                else:
                    connection.raw.terminate()
                raise
            self._idle.append(connection)

    async def query(self, query: Callable[[PooledConnection], Awaitable[T]]) -> T:
        """Run a query that may run twice: again on another connection if the first one broke."""
        try:
            try:
                return await self._run(query)
            except Exception as error:
                if not is_retryable(error):
                    raise
                return await self._run(query)
        except StoreError:
            raise
        except Exception as error:
            if is_database_error(error):
                raise self._connector.explain(error) from error
            raise

    async def close(self) -> None:
        """Close all connections, once none is in use."""
        for _ in range(self._most):
            await self._slots.acquire()
        while self._idle:
            await self._idle.pop().close()
        for _ in range(self._most):
            self._slots.release()

    async def _run(self, query: Callable[[PooledConnection], Awaitable[T]]) -> T:
        async with self.connection() as connection:
            return await query(connection)

    def _idle_connection(self) -> PooledConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.raw.is_closed():
                return connection
        return None
