"""The SQLite backend: one file that any number of processes on a machine share."""

from perdure.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
