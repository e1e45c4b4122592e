"""Checks of a database's integrity: damage, missing records, unreadable events and entries."""

from dataclasses import dataclass
from typing import Any

import msgspec

from perdure.core.json_depth import check_readable
from perdure.core.log import codec
from perdure.core.pending import record as pending
from perdure.core.session import naming as index
from perdure.errors import Corrupt, PerdureError
from perdure.runtime.doctor.checks import (
    MAX_LISTED,
    CheckResult,
    Checks,
    Commands,
    decode_or_none,
    fine,
)
from perdure.store.inspect import StoreInspector
from perdure.store.postgres.inspect import PostgresInspector
from perdure.store.sqlite.inspect import SqliteInspector


@dataclass(frozen=True, slots=True)
class IntegrityCheckup:
    """Checks whether everything in a database can be read."""

    inspector: StoreInspector
    commands: Commands
    is_full: bool = False  # also compare every index with its table

    def checks(self) -> Checks:
        """Yield the damage, or one check that there is none."""
        findings = [*self._damage(), *self._unreadable_events(), *self._unreadable_entries()]
        yield from findings
        if not findings:
            yield fine("INTEGRITY", f"integrity: {self._clean_text()}every event can be read")

    def unreadable(self, error: PerdureError) -> CheckResult:
        """Return the check of a database that cannot be read at all."""
        return CheckResult("corrupt", "DATABASE_DAMAGED", error.message, self._restore())

    @property
    def _is_sqlite(self) -> bool:
        return isinstance(self.inspector, SqliteInspector)

    def _clean_text(self) -> str:
        if isinstance(self.inspector, PostgresInspector):
            return ""
        method = "integrity_check" if self.is_full else "quick_check"
        return f"{method} is clean, and " if self._is_sqlite else "every checksum is right, and "

    def _rebuild(self, session: str) -> str:
        command = self.commands.command("doctor", session)
        return f"see what can be kept: {command} (--fix rebuilds it and keeps the original)"

    def _restore(self) -> str:
        return "stop all workers and restore a backup; readable sessions: " + self.commands.command(
            "sessions", "export", "--all"
        )

    def _damage(self) -> Checks:
        for text in self.inspector.damage(full=self.is_full)[:MAX_LISTED]:
            if self._is_sqlite:
                yield CheckResult("corrupt", "DATABASE_DAMAGED", f"SQLite: {text}", self._restore())
            else:
                remedy = (
                    f"it is kept, and created again by: {self.commands.command('sessions', 'list')}"
                )
                yield CheckResult("finding", "JOURNAL_DAMAGED", text, remedy)
        for stream, count in self.inspector.holes()[:MAX_LISTED]:
            name = (index.parse_session_stream(stream) or ("", stream))[1]
            events = "1 event" if count == 1 else f"{count} events"
            text = f"session {name} has lost {events}"
            remedy = f"{self._rebuild(name)}; or {self._restore()}"
            yield CheckResult("corrupt", "EVENTS_MISSING", text, remedy, {"sessionID": name})

    def _unreadable_events(self) -> Checks:
        unreadable: list[tuple[str, int, str]] = []

        def add(stream: str, seq: int, kind: str, data: Any) -> None:
            names = index.parse_session_stream(stream)
            if names is not None and (reason := _event_problem(kind, data)):
                unreadable.append((names[1], seq, reason))

        self.inspector.records(add)
        for session, seq, reason in unreadable[:MAX_LISTED]:
            yield CheckResult(
                "corrupt",
                "EVENT_UNREADABLE",
                f"event {seq} of session {session} cannot be read: {reason}",
                f"{self._rebuild(session)}; the events before it: "
                f"{self.commands.command('sessions', 'export', session)}; or restore a backup",
                {"sessionID": session, "seq": seq},
            )

    def _unreadable_entries(self) -> Checks:
        for kind, decode in (("session", index.decode), ("pending", pending.decode)):
            unreadable: list[str] = []

            def add(
                key: str, data: Any, keys: list[str] = unreadable, decode: Any = decode
            ) -> None:
                if decode_or_none(decode, data) is None:
                    keys.append(key)

            self.inspector.entries(add, kind, None)
            for key in unreadable[:MAX_LISTED]:
                text = f"the {kind} entry {key} cannot be read"
                yield CheckResult(
                    "corrupt", "ENTRY_UNREADABLE", text, self._restore(), {"key": key}
                )


def _event_problem(kind: str, data: Any) -> str:
    try:
        check_readable(data)
        msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        codec.decode(kind, data)
    except Corrupt as error:
        return error.message
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:
        return str(error)
    return ""
