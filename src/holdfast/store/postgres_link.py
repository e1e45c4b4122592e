"""Connections to PostgreSQL with our settings, and what its errors mean."""

import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from types import ModuleType
from typing import Any, Final, Protocol, TypeVar

import anyio

from holdfast.errors import ConfigError, Corrupt, StoreError
from holdfast.store.base import Unavailable
from holdfast.store.postgres_url import Address

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
    "jit": "off",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}


class Connection(Protocol):
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


class Line:
    """One connection; used by one task at a time."""

    def __init__(self, connection: Connection, begin: str, *, is_pooled: bool) -> None:
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
    async def transaction(self) -> AsyncIterator[Connection]:
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


class Dial:
    """Makes connections to one database."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._asyncpg: ModuleType | None = None

    async def line(self, *, synced: bool = True, patient: bool = False) -> Line:
        """A new connection; raises StoreError.

        Without `synced` its commits are not on the disk when they are answered: for what is
        forgotten with its process, or carried along by the next commit that is synced. A `patient`
        one waits for its statements as long as they take.
        """
        pooled = self.address.is_pooled
        settings = self._settings(synced=synced)
        more: dict[str, Any] = (
            {"statement_cache_size": 0}
            if pooled
            else {"server_settings": settings, "max_cached_statement_lifetime": 0}
        )
        connect = self._module().connect
        try:
            connection = await connect(
                self.address.dsn,
                timeout=CONNECT_S,
                command_timeout=None if patient else COMMAND_S,
                **more,
            )
        except Exception as error:
            raise self.explained(error) from error
        _keep_alive(connection)
        begin = "BEGIN ISOLATION LEVEL READ COMMITTED"
        if pooled:
            begin = ";".join([begin, *(f"SET LOCAL {n} = '{v}'" for n, v in settings.items())])
        return Line(connection, begin, is_pooled=pooled)

    async def plain(self) -> Connection:
        """A new connection with the settings that the server has for everybody."""
        connect = self._module().connect
        try:
            connection: Connection = await connect(
                self.address.dsn,
                timeout=CONNECT_S,
                command_timeout=COMMAND_S,
                statement_cache_size=0,
            )
        except Exception as error:
            raise self.explained(error) from error
        return connection

    def explained(self, error: Exception) -> StoreError:
        """What an error of the database or the network means for the caller, in one line."""
        if isinstance(error, StoreError):
            return type(error)(error.message, hint=error.hint)
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
                    hint="pip install 'holdfast[postgres]'",
                ) from None
            self._asyncpg = asyncpg
        return self._asyncpg


_LATER: Final = "it is tried again by itself; holdfast doctor looks closer"
# By the beginning of its SQLSTATE, the longest that fits.
_MEANINGS: Final[dict[str, tuple[type[StoreError], str, str]]] = {
    "08": (Unavailable, "the connection to {where} broke", _LATER),
    "25006": (Unavailable, "{where} takes no writes now", "name the primary, not a standby"),
    "25P03": (Unavailable, "a transaction on {where} stood still for too long", _LATER),
    "28": (StoreError, "{where} does not let us in", "check user and password in the URL"),
    "3D000": (StoreError, "{where} does not exist", "create the database: createdb NAME"),
    "40": (Unavailable, "{where} had to undo a transaction", _LATER),
    "42501": (StoreError, "{where} does not allow it", "grant the user the schema and its tables"),
    "42P01": (StoreError, "{where} has no tables of holdfast", "holdfast db migrate"),
    "53100": (Unavailable, "the disk of {where} is full", "make room; nothing was written"),
    "53300": (Unavailable, "{where} has no connection left", "raise max_connections, or pool"),
    "53": (Unavailable, "{where} lacks resources", _LATER),
    "55P03": (Unavailable, "a row on {where} stayed locked for too long", _LATER),
    "57": (Unavailable, "{where} is stopping or starting", _LATER),
    "58": (Unavailable, "{where} has trouble with its files", _LATER),
    "XX001": (Corrupt, "{where} has damaged data", "restore a backup of the database"),
    "XX002": (Corrupt, "{where} has a damaged index", "REINDEX it, or restore a backup"),
}

UNDONE: Final = ("40001", "40P01")  # the server chose us to give way: the same again may go through
LOCKED: Final = "55P03"  # a row stayed locked
OF_A_ROW: Final = (*UNDONE, LOCKED)
_OF_A_VALUE: Final = ("22", "54")


def is_database_error(error: BaseException) -> bool:
    """Whether the server, its driver or the way to it said so."""
    if isinstance(error, OSError | TimeoutError):
        return True
    return type(error).__module__.split(".")[0] == "asyncpg"


def is_broken(error: BaseException) -> bool:
    """Whether the connection ended, so that another one may do better at once."""
    code = sqlstate(error)
    return code[:2] in {"08", "57"} or code == "25P03" or (not code and is_database_error(error))


def may_go_again(error: BaseException) -> bool:
    """Whether the same on another connection may do better; not if we waited for long in vain."""
    return is_broken(error) and not isinstance(error, TimeoutError)


def is_of_one(error: Exception) -> bool:
    """Whether it may come from one of the many that a statement is about: a row, or a value."""
    cause = error.__cause__ if isinstance(error, StoreError) else error
    code = "" if cause is None else sqlstate(cause)
    return code in OF_A_ROW or code[:2] in _OF_A_VALUE


def sqlstate(error: BaseException) -> str:
    """The server's own code of an error; empty if it is none of the server's."""
    return str(getattr(error, "sqlstate", None) or "")


def explained(error: Exception, where: str) -> StoreError:
    """What an error means, in one line."""
    code = sqlstate(error)
    if code == "08P01" and "startup parameter" in str(error):
        hint = "add listen=off&advisory=off to the query of the store's URL"
        return StoreError(f"{where} is a pooler ({_first_line(error)})", hint=hint)
    for length in (5, 2):
        if code and code[:length] in _MEANINGS:
            kind, text, hint = _MEANINGS[code[:length]]
            return kind(f"{text.format(where=where)} ({_first_line(error)})", hint=hint)
    if code:
        return StoreError(f"PostgreSQL refused on {where}: {_first_line(error)}")
    if is_database_error(error):
        return Unavailable(f"{where} cannot be reached: {_first_line(error)}", hint=_LATER)
    return StoreError(f"{where}: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


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
