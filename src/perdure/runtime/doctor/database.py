"""What is wrong with a database and everything in it, each with what to type about it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from perdure.core.durations import format_ms
from perdure.core.log import codec
from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.core.session import naming as index
from perdure.core.session.naming import SessionRecord
from perdure.core.session.queues import DEFAULT, MANY
from perdure.errors import Corrupt, PerdureError, SchemaNewer, StoreError
from perdure.runtime.doctor.checks import Check, Checks, fine
from perdure.runtime.doctor.postgres import schema_check, server_checks
from perdure.runtime.queues import due_by_queue, workers_by_queue
from perdure.store.files.inspect import FilesLook
from perdure.store.inspect import Look, Sizes, Vitals
from perdure.store.postgres.inspect import PostgresLook
from perdure.store.sqlite.inspect import Examination, Linked, known_schema, linked, place

_GRACE_MS: Final = 10_000  # a live worker has seen to it by then
_AHEAD_MS: Final = 60_000
_LONG_MS: Final = 3_600_000
_LEAST_FREE: Final = 256 * 2**20
_MOST: Final = 10  # things named of each kind


class Commands(Protocol):
    """Command lines that work on the same database, to be typed as they are."""

    @property
    def has_code(self) -> bool:
        """Whether agents may be known where they are typed."""
        ...

    def command(self, *words: str) -> str:
        """A command."""
        ...

    def worker(self, agent: str, queue: str = DEFAULT) -> str:
        """The one that starts a worker which has the agent and serves the queue."""
        ...


@dataclass(frozen=True, slots=True)
class Checkup:
    """Looks at one database; `type` says what to type about what it finds."""

    look: Look
    now: int
    type: Commands
    full: bool = False  # also compares every index with its table

    def checks(self) -> Checks:
        """Everything, most basic first; what cannot be read ends it early."""
        try:
            yield from self._around()
            vitals = self.look.vitals(self.now)
        except Corrupt as error:
            yield self._unreadable(error)
            return
        except SchemaNewer as error:
            yield Check("finding", "SCHEMA_NEWER", error.message, error.hint or "")
            return
        except StoreError as error:
            yield Check("finding", error.code, error.message, error.hint or "")
            return
        yield self._schema(vitals)
        for part in (self._inside, self._integrity):
            try:
                yield from part(vitals)
            except Corrupt as error:
                yield self._unreadable(error)

    def _unreadable(self, error: PerdureError) -> Check:
        return Check("corrupt", "DATABASE_DAMAGED", error.message, self._restore())

    def _mend(self, session: str) -> str:
        shown = self.type.command("doctor", session)
        return f"see what can be kept: {shown} (with --fix it is done, and the original kept)"

    def _restore(self) -> str:
        return (
            "stop all workers and put a backup in its place; what is readable: "
            + self.type.command("sessions", "export", "--all")
        )

    # --- around the file ------------------------------------------------------------------------

    @property
    def _is_sqlite(self) -> bool:
        return isinstance(self.look, Examination)

    def _around(self) -> Checks:
        if isinstance(self.look, PostgresLook):
            yield from server_checks(self.look.server())
        if isinstance(self.look, Examination):
            yield _sqlite(linked())
        if isinstance(self.look, Examination | FilesLook):
            yield self._file_system(self.look.path)

    def _file_system(self, path: Path) -> Check:
        kind, where = place(path)
        if where == "network":
            text = f"{path} is on a network file system ({kind})"
            return Check("finding", "NETWORK_FILE_SYSTEM", text, "move it to a local disk")
        if where == "doubtful":
            text = f"{path} is in a folder shared with another machine ({kind})"
            return Check("finding", "SHARED_FOLDER", text, "move it to a disk of this machine")
        return fine("FILE_SYSTEM", f"file system: {kind or 'unknown'}")

    def _schema(self, vitals: Vitals) -> Check:
        if isinstance(self.look, PostgresLook):
            return schema_check(vitals.schema)
        if not self._is_sqlite:
            return fine("SCHEMA", f"a folder of files, format {vitals.schema}")
        known = known_schema()
        if vitals.schema == known:
            return fine("SCHEMA", f"schema {known}, the newest")
        text = f"schema {vitals.schema}; the next command that writes makes it {known}"
        return fine("SCHEMA", text)

    # --- what is in it --------------------------------------------------------------------------

    def _inside(self, vitals: Vitals) -> Checks:
        yield _space(self.look.sizes())
        yield from self._clock(vitals)
        yield from self._workers(vitals)
        yield from self._due(vitals)
        yield from self._stuck()
        yield from self._calls()

    def _clock(self, vitals: Vitals) -> Checks:
        ahead = (vitals.newest or 0) - self.now
        if ahead > _AHEAD_MS:
            yield Check(
                "finding",
                "CLOCK",
                f"the newest event lies {format_ms(ahead // 1000 * 1000)} in the future: this "
                "machine's clock is behind, or was ahead",
                "set the clock (timedatectl); deadlines and leases count from it",
                {"aheadMs": ahead},
            )
        elif any(until > self.now + _LONG_MS for _, until, _ in vitals.holders):
            yield Check(
                "finding",
                "CLOCK",
                "a lease ends more than an hour from now: the clock was set back, or "
                "PERDURE_LEASE is long; a worker that dies is replaced only then",
                "set the clock (timedatectl), or wait",
            )
        else:
            yield fine("CLOCK", "clock: nothing recorded lies in the future")

    def _workers(self, vitals: Vitals) -> Checks:
        over = [one for one in vitals.holders if one[1] <= self.now - _GRACE_MS]
        for name, until, held in over:
            silent = format_ms((self.now - until) // 1000 * 1000)
            text = f"worker {name} has been silent for {silent} beyond its lease"
            details = {"worker": name, "sessions": held}
            held_text = f" and still has {held} sessions" if held else ""
            remedy = f"the next worker takes over: {self._any_worker()}"
            yield Check("finding", "STALE_LEASE", text + held_text, remedy, details)
        if not over:
            alive = len(vitals.holders)
            yield fine("WORKERS", f"workers: {alive} alive")

    def _due(self, vitals: Vitals) -> Checks:
        unserved = self._unserved(vitals)
        for queue, count in unserved.items():
            many = "1 session is" if count == 1 else f"{count} sessions are"
            yield Check(
                "finding",
                "NO_WORKER",
                f"{many} due in queue {queue}, and no worker serves it",
                self.type.worker("their agent", queue),
                {"queue": queue, "due": count},
            )
        late = [one for one in vitals.due.streams if one[2] <= self.now - _GRACE_MS]
        late = [one for one in late if index.names_of_kind(one[1])[1] not in unserved]
        for stream, kind, since in late[:_MOST]:
            names = index.names_in(stream) or ("", stream)
            agent, queue = index.names_of_kind(kind)
            waits = format_ms((self.now - since) // 1000 * 1000)
            yield Check(
                "finding",
                "NO_WORKER",
                f"session {names[1]} of agent {agent} has been due for {waits}, and nobody "
                "drives it",
                self._drive(names[1], agent, queue),
                {"sessionID": names[1], "tenant": names[0], "agent": agent, "due": since},
            )
        if len(late) > _MOST:
            yield Check("finding", "NO_WORKER", f"{vitals.due.count} in all", self._any_worker())
        if not late and not unserved:
            yield fine("DUE", "sessions: none is due and left alone")

    def _unserved(self, vitals: Vitals) -> dict[str, int]:
        """Queues with something to do that nobody alive serves; of `default` only time can tell."""
        served = workers_by_queue(vitals, self.now)
        due = {} if served[MANY] else due_by_queue(vitals)
        return {name: due[name] for name in sorted(due) if name != DEFAULT and not served[name]}

    def _drive(self, session: str, agent: str, queue: str) -> str:
        start = self.type.worker(agent, queue)
        if not self.type.has_code:
            return start
        return f"{start}; or: {self.type.command('sessions', 'resume', session)}"

    def _any_worker(self) -> str:
        return self.type.command("worker") if self.type.has_code else "perdure worker"

    def _stuck(self) -> Checks:
        found = self._sessions("stuck")
        for record in found[:_MOST]:
            yield Check(
                "finding",
                record.problem or "STUCK",
                f"session {record.id} cannot go on: {record.problem_text or record.problem}",
                self.type.command("sessions", "show", record.id),
                {"sessionID": record.id, "tenant": record.tenant},
            )
        if not found:
            yield fine("STUCK", "sessions: none is stuck")

    def _calls(self) -> Checks:
        waiting = self._open_calls()
        overdue = [
            one for one in waiting if one.due is not None and one.due <= self.now - _GRACE_MS
        ]
        for one in overdue[:_MOST]:
            text = f"{one.tool} ({one.id}) of session {one.session_id} is past its deadline"
            remedy = f"any worker expires it: {self.type.worker(one.agent)}"
            yield Check("finding", "OVERDUE", text, remedy, {"pendingID": one.id, "due": one.due})
        cut_off = [one for one in waiting if one.problem == "START_INTERRUPTED"]
        for one in cut_off[:_MOST]:
            yield Check(
                "finding",
                "START_INTERRUPTED",
                f"{one.tool} ({one.id}) of session {one.session_id} was being started when its "
                "process stopped; it may or may not have begun",
                "look there, then: "
                + self.type.command("pending", "result", one.id, "--output", "…")
                + " or "
                + self.type.command("pending", "cancel", one.id),
                {"pendingID": one.id, "externalRef": one.external_ref},
            )
        if not overdue and not cut_off:
            yield fine("CALLS", f"calls: {len(waiting)} wait, none is overdue")

    def _sessions(self, state: str) -> list[SessionRecord]:
        found: list[SessionRecord] = []

        def take(_: str, data: Any) -> None:
            if (record := _decoded(index.decode, data)) is not None:
                found.append(record)

        self.look.entries(take, "session", state)
        return found

    def _open_calls(self) -> list[PendingRecord]:
        found: list[PendingRecord] = []

        def take(_: str, data: Any) -> None:
            if (record := _decoded(pending.decode, data)) is not None:
                found.append(record)

        self.look.entries(take, "pending", "open")
        return found

    # --- is it whole ----------------------------------------------------------------------------

    def _integrity(self, _: Vitals) -> Checks:
        wrong = list(self._damage())
        yield from wrong
        if not wrong:
            yield fine("INTEGRITY", f"integrity: {self._clean()}every event can be read")

    def _clean(self) -> str:
        if isinstance(self.look, PostgresLook):
            return ""
        how = "integrity_check" if self.full else "quick_check"
        return f"{how} is clean, and " if self._is_sqlite else "every checksum is right, and "

    def _damage(self) -> Checks:
        for text in self.look.damage(full=self.full)[:_MOST]:
            if self._is_sqlite:
                yield Check("corrupt", "DATABASE_DAMAGED", f"SQLite: {text}", self._restore())
            else:
                remedy = f"it is kept, and made again by: {self.type.command('sessions', 'list')}"
                yield Check("finding", "JOURNAL_DAMAGED", text, remedy)
        for stream, count in self.look.holes()[:_MOST]:
            name = (index.names_in(stream) or ("", stream))[1]
            text = f"session {name} has lost {count} events"
            remedy = f"{self._mend(name)}; or {self._restore()}"
            yield Check("corrupt", "EVENTS_MISSING", text, remedy, {"sessionID": name})
        yield from self._unreadable_events()
        yield from self._unreadable_entries()

    def _unreadable_events(self) -> Checks:
        bad: list[tuple[str, int, str]] = []

        def take(stream: str, seq: int, kind: str, data: Any) -> None:
            names = index.names_in(stream)
            if names is not None and (why := _event_problem(kind, data)):
                bad.append((names[1], seq, why))

        self.look.records(take)
        for session, seq, why in bad[:_MOST]:
            yield Check(
                "corrupt",
                "EVENT_UNREADABLE",
                f"event {seq} of session {session} cannot be read: {why}",
                f"{self._mend(session)}; what stands before it: "
                f"{self.type.command('sessions', 'export', session)}; or restore a backup",
                {"sessionID": session, "seq": seq},
            )

    def _unreadable_entries(self) -> Checks:
        for kind, decode in (("session", index.decode), ("pending", pending.decode)):
            bad: list[str] = []

            def take(key: str, data: Any, bad: list[str] = bad, decode: Any = decode) -> None:
                if _decoded(decode, data) is None:
                    bad.append(key)

            self.look.entries(take, kind, None)
            for key in bad[:_MOST]:
                text = f"the {kind} entry {key} cannot be read"
                yield Check("corrupt", "ENTRY_UNREADABLE", text, self._restore(), {"key": key})


def _decoded(decode: Callable[[bytes], Any], data: Any) -> Any:
    try:
        return decode(data)
    except (Corrupt, msgspec.MsgspecError, UnicodeDecodeError, TypeError):
        return None


def _event_problem(kind: str, data: Any) -> str:
    try:
        msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        codec.decode(kind, data)
    except Corrupt as error:
        return error.message
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:
        return str(error)
    return ""


def _sqlite(found: Linked) -> Check:
    if found.number < (3, 35):
        text = f"SQLite {found.version} is linked; perdure needs 3.35 or newer"
        return Check("finding", "SQLITE_OLD", text, "use a Python with a newer SQLite")
    if not found.has_wal_reset_bug:
        return fine("SQLITE", f"SQLite {found.version}, without the WAL-reset bug")
    return fine(
        "SQLITE",
        f"SQLite {found.version} has the WAL-reset bug (before 3.51.3: checkpoints beside writers "
        "can damage a file); perdure does both one at a time, under the lock file, and is not "
        "affected. Do not write the file with other programs.",
    )


def _space(sizes: Sizes) -> Check:
    if sizes.disk_free is None:
        return fine("SPACE", f"the database takes {sizes.file / 2**20:,.1f} MiB")
    free = f"{sizes.disk_free / 2**20:,.0f} MiB free"
    if sizes.disk_free >= max(_LEAST_FREE, sizes.file // 10):
        return fine("SPACE", f"disk: {free}, the database takes {sizes.file / 2**20:,.1f} MiB")
    remedy = "make room: with a full disk nothing can be recorded"
    return Check("finding", "SPACE", f"disk: only {free}", remedy, {"free": sizes.disk_free})
