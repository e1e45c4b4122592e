"""Checks of a database's integrity: damage, missing records, unreadable events and entries."""

from dataclasses import dataclass
from typing import Any

import msgspec

from perdure.core.json_depth import check_readable
from perdure.core.log import codec
from perdure.core.pending import record as pending
from perdure.core.session import naming as index
from perdure.errors import Corrupt, PerdureError
from perdure.runtime.diagnosis.commands import Commands
from perdure.runtime.doctor.checks import (
    MAX_LISTED,
    CheckResult,
    Checks,
    decode_or_none,
    fine,
)
from perdure.store.base import Entry
from perdure.store.inspect import StoredRecord, StoreInspector
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
        damage = self.inspector.damage(full=self.is_full)
        # Rebuilding a session writes; nothing is written to a file whose pages are damaged.
        rebuilds = not (damage and self._is_sqlite)
        findings = [
            *self._damage(damage),
            *self._missing_events(rebuilds=rebuilds),
            *self._unreadable_events(rebuilds=rebuilds),
            *self._unreadable_entries(rebuilds=rebuilds),
        ]
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

    def _remedy(self, session: str | None, *, rebuilds: bool) -> str:
        """Return the commands that rebuild a session, or else restore the database."""
        if session is None or not rebuilds:
            return self._restore()
        command = self.commands.command("doctor", session, "--fix")
        return f"{command} rebuilds it from its readable events and keeps the original in a file"

    def _restore(self) -> str:
        return "stop all workers and restore a backup; readable sessions: " + self.commands.command(
            "sessions", "export", "--all"
        )

    def _damage(self, texts: list[str]) -> Checks:
        for text in texts[:MAX_LISTED]:
            if self._is_sqlite:
                yield CheckResult("corrupt", "DATABASE_DAMAGED", f"SQLite: {text}", self._restore())
            else:
                remedy = (
                    f"it is kept, and created again by: {self.commands.command('sessions', 'list')}"
                )
                yield CheckResult("finding", "JOURNAL_DAMAGED", text, remedy)

    def _missing_events(self, *, rebuilds: bool) -> Checks:
        for stream, count in self.inspector.holes()[:MAX_LISTED]:
            session = _session_of(stream)
            name = session or stream
            events = "1 event" if count == 1 else f"{count} events"
            text = f"session {name} has lost {events}"
            remedy = self._remedy(session, rebuilds=rebuilds)
            yield CheckResult("corrupt", "EVENTS_MISSING", text, remedy, {"sessionID": name})

    def _unreadable_events(self, *, rebuilds: bool) -> Checks:
        unreadable: list[tuple[str, int, str]] = []

        def add(stream: str, record: StoredRecord) -> None:
            is_event = _session_of(stream) is not None
            reason = record.problem or (_event_problem(record) if is_event else "")
            if reason:
                unreadable.append((stream, record.seq, reason))

        self.inspector.records(add)
        for stream, seq, reason in unreadable[:MAX_LISTED]:
            session = _session_of(stream)
            name = stream if session is None else f"session {session}"
            remedy = self._remedy(session, rebuilds=rebuilds)
            if session is not None and rebuilds:
                export = self.commands.command("sessions", "export", session)
                remedy = f"{remedy}; the events before it: {export}"
            yield CheckResult(
                "corrupt",
                "EVENT_UNREADABLE",
                f"event {seq} of {name} cannot be read: {reason}",
                remedy,
                {"sessionID": session, "seq": seq},
            )

    def _unreadable_entries(self, *, rebuilds: bool) -> Checks:
        for kind, decode in (("session", index.decode), ("pending", pending.decode)):
            unreadable: list[Entry] = []

            def add(entry: Entry, entries: list[Entry] = unreadable, decode: Any = decode) -> None:
                if decode_or_none(decode, entry.data) is None:
                    entries.append(entry)

            self.inspector.entries(add, kind, None)
            for entry in unreadable[:MAX_LISTED]:
                session = _session_of(entry.stream)
                text = f"the {kind} entry {entry.key} cannot be read"
                remedy = self._remedy(session, rebuilds=rebuilds)
                details = {"key": entry.key, "sessionID": session}
                yield CheckResult("corrupt", "ENTRY_UNREADABLE", text, remedy, details)


def _session_of(stream: str) -> str | None:
    """Return the id of the session whose stream this is; None for other streams."""
    names = index.parse_session_stream(stream)
    return None if names is None else names[1]


def _event_problem(record: StoredRecord) -> str:
    try:
        check_readable(record.data)
        msgspec.json.decode(record.data, type=dict[str, msgspec.Raw])
        codec.decode(record.type, record.data)
    except Corrupt as error:
        return error.message
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:
        return str(error)
    return ""
