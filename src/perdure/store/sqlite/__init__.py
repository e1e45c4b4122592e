"""The SQLite backend."""

from perdure.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
