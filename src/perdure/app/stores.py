"""Stores by their URL."""

import hashlib
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path

from perdure.errors import ConfigError
from perdure.store.base import Clock, Store

around_store: ContextVar[Callable[[Store], Store]] = ContextVar(
    "around_store", default=lambda plain: plain
)
"""A seam for tests: wraps the store of every Runtime that is created in this context."""


def open_store(store: str | Store, clock: Clock | None = None) -> Store:
    """Return the store of a URL: `sqlite:///…`, `postgresql://…`, `files:./folder`, `memory:`."""
    if not isinstance(store, str):
        return store
    scheme, _, rest = store.partition(":")
    if scheme == "memory" and not rest:
        from perdure.store.memory import MemoryStore

        return MemoryStore(clock)
    if scheme == "sqlite" and rest.startswith("///") and len(rest) > 3:
        from perdure.store.sqlite.store import SqliteStore

        return SqliteStore(rest[3:], clock=clock)
    if scheme == "files" and rest:
        from perdure.app.layouts import SessionFiles
        from perdure.store.files.store import files_store

        return files_store(rest.removeprefix("//"), SessionFiles(), clock=clock)
    if scheme in {"postgresql", "postgres"}:
        from perdure.store.postgres.store import PostgresStore

        return PostgresStore(store, clock=clock)
    raise ConfigError(
        f"the store {_without_password(store)!r} is unknown",
        code="STORE_UNKNOWN",
        hint="use sqlite:///perdure.db, postgresql://HOST/DATABASE, files:./folder or memory:",
    )


def indexed(store: Store, url: str | None) -> Store:
    """Return the store with an index of its pending calls; without a URL, the store itself."""
    if url is None:
        return store
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise ConfigError(
            f"the index {_without_password(url)!r} is unknown",
            code="INDEX_UNKNOWN",
            hint="use redis://localhost:6379/0",
        )
    try:
        from perdure.store.redis.store import IndexedStore
    except ImportError as error:
        raise ConfigError(
            "an index in Redis needs the redis library, which is not installed",
            code="NOT_INSTALLED",
            hint="pip install 'perdure[redis]'",
        ) from error
    from perdure.app.layouts import PendingNames

    return IndexedStore(store, url, PendingNames())


def without_index(store: Store) -> Store:
    """Return the store itself, without its index if it has one."""
    primary: Store = getattr(store, "primary", store)
    return primary


def is_in_memory(store: str | Store) -> bool:
    """Report whether the store loses everything when the process ends."""
    if isinstance(store, str):
        return store == "memory:"
    from perdure.store.memory import MemoryStore

    return isinstance(store, MemoryStore)


def default_tasks_root(store: str | Store) -> Path | None:
    """Return the folder of tasks beside a store of files; None for a server and for memory.

    It is absolute, as the path of the store is: a program may change its folder later.
    """
    if not isinstance(store, str):
        from perdure.store.files.store import mirror_of

        mirror = mirror_of(store)
        path = getattr(store, "path", None) if mirror is None else mirror.base
    elif store.startswith("sqlite:///"):
        path = store.removeprefix("sqlite:///")
    elif store.startswith("files:"):
        path = store.removeprefix("files:").removeprefix("//").rstrip("/")
    else:
        path = None
    return None if path is None else Path(f"{path}.tasks").absolute()


def private_paths(store: str | Store, tasks_root: Path | None) -> list[Path]:
    """Return the files and folders that a command in a task must never see."""
    default = default_tasks_root(store)
    beside = None if default is None else default.with_name(default.name.removesuffix(".tasks"))
    return [path for path in (beside, tasks_root) if path is not None]


def store_id(store: Store) -> str:
    """Return an id that two processes compare: equal only for the same data.

    It is short and cannot be computed back: everybody may read it, and no path or address.
    """
    plain = without_index(store)
    identity = getattr(plain, "identity", type(plain).__qualname__)
    return hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def has_liveness_locks(store: Store) -> bool:
    """Report whether the store detects that a process has died before its lease expires."""
    return bool(getattr(store, "has_liveness_locks", True))


def _without_password(url: str) -> str:
    head, at, tail = url.rpartition("@")
    return f"{head.split('//')[0]}//…@{tail}" if at else url
