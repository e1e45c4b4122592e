"""The SQLite backend."""

from holdfast.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
