"""Connection of apsw with the part of Python's `sqlite3` API that the store uses."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apsw


class Cursor:
    """Rows of one statement, all fetched."""

    def __init__(self, connection: apsw.Connection, sql: str, values: Sequence[Any]) -> None:
        before = connection.total_changes()
        self._rows = iter(connection.execute(sql, tuple(values)).fetchall())
        self.rowcount = connection.total_changes() - before
        self.lastrowid = connection.last_insert_rowid()

    def fetchone(self) -> tuple[Any, ...] | None:
        return next(self._rows, None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return list(self._rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._rows


class Connection:
    """Connection; `settings` replaces the values of pragmas that the store sets."""

    Error = apsw.Error

    def __init__(self, path: str, vfs: str, settings: Mapping[str, object]) -> None:
        self._connection = apsw.Connection(path, vfs=vfs)
        self._settings = settings

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Cursor:
        try:
            return Cursor(self._connection, self._replaced(sql), values)
        except apsw.Error as error:
            error.sqlite_errorcode = error.extendedresult  # type: ignore[attr-defined]
            raise

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> None:
        for values in rows:
            self.execute(sql, values)

    def close(self) -> None:
        self._connection.close()

    def _replaced(self, sql: str) -> str:
        setting = re.fullmatch(r"PRAGMA (\w+) = \w+", sql)
        if setting is None or setting[1] not in self._settings:
            return sql
        return f"PRAGMA {setting[1]} = {self._settings[setting[1]]}"
