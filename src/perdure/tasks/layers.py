"""Layers of a task: its saved state, its log and its decisions, with or without a row."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from perdure.errors import Corrupt, StoreError
from perdure.store.base import Gone, NoStream, Record, Store, VersionMoved
from perdure.tasks.entries import find_task, get_task, live_stream
from perdure.tasks.files.layer_files import STATE
from perdure.tasks.files.mirror import TaskMirror, derived_state
from perdure.tasks.locks.values import LockInfo
from perdure.tasks.model import facts, record, state_file
from perdure.tasks.model.facts import AgentDecision, FactType, LogEntry, TaskFact
from perdure.tasks.model.state_file import TaskState
from perdure.tasks.values import (
    LogOptions,
    TaskRef,
    check_count,
    check_decision,
    check_list,
    check_log_entry,
    check_state,
    check_task_id,
    from_mapping,
    invalid,
    parse_instant,
)
from perdure.tasks.writer import TaskCommit, TaskWriter
from perdure.views.task_bodies import MAX_LINES

_PAGE: Final = 500
FOLLOW_S: Final = 5.0  # the longest pause between two looks at a log that is followed
_PER_RECORD: Final = 1_000  # lines of one record


class Layers:
    """State, log and decisions of tasks. An unknown task has none; the first write makes it."""

    def __init__(self, store: Store, writer: TaskWriter, mirror: TaskMirror) -> None:
        self._store = store
        self._writer = writer
        self._mirror = mirror

    # --- state --------------------------------------------------------------------------------

    async def save_state(
        self, ref: TaskRef, state: Any, guard: LockInfo | None = None
    ) -> TaskState:
        """Save a state in place of the previous one. Raises Refused, StoreError."""
        check_task_id(ref.task_id)
        saved = check_state(state, ref.task_id, self._store.now())
        key = record.task_key(ref.tenant, ref.task_id)
        while True:
            present = await self._store.get(record.STATE, key)
            version = 1 if present is None else present.version + 1
            try:
                await self._commit(ref, (), (saved, version), guard)
            except VersionMoved:
                continue
            return saved

    async def load_state(self, ref: TaskRef) -> TaskState | None:
        """Return the state; None if the task does not exist. Raises Corrupt.

        Without a saved state it is the one that follows from the task's row. A `state.json` that is
        empty, or has another content than its checksum says, is an error too: somebody edited it,
        and expects that to have an effect.
        """
        entry = await find_task(self._store, ref)
        stored = await self._store.get(record.STATE, record.task_key(ref.tenant, ref.task_id))
        saved = None if stored is None else self._parsed(stored.data, ref)
        row = None if entry is None else entry.record
        holder = entry or stored
        if holder is not None and self._mirror.is_here(row):
            self._check_file(holder.stream, ref)
        return derived_state(row, saved)

    def _parsed(self, data: bytes, ref: TaskRef) -> TaskState:
        try:
            return state_file.parse_state(data)
        except Corrupt as error:
            raise Corrupt(
                f"the stored state of task {ref.task_id} is damaged: {error.message}",
                code="STATE_VALIDATION_FAILED",
                hint="save it again, or restore a checkpoint: perdure tasks checkpoints "
                f"{ref.task_id}",
            ) from error

    def _check_file(self, stream: str, ref: TaskRef) -> None:
        path = self._mirror.place.folder(stream) / STATE
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(
                f"{path} cannot be read: {error.strerror}",
                code="STATE_LOAD_FAILED",
                hint="make it readable for this user",
            ) from error
        try:
            state_file.parse_state(content)
        except Corrupt as error:
            raise Corrupt(
                f"{path} was changed: {error.message}",
                code="STATE_VALIDATION_FAILED",
                hint="remove the file: the store has the state, and writes it again at the next "
                f"change of task {ref.task_id}",
            ) from error

    # --- log ----------------------------------------------------------------------------------

    async def append_logs(
        self, ref: TaskRef, entries: Sequence[Any], guard: LockInfo | None = None
    ) -> None:
        """Append entries in one commit, all or none. Raises Refused."""
        batch_entries = check_list(entries, "a batch of log entries")
        number = len(batch_entries)
        if number > MAX_LINES:
            raise invalid(f"a batch has {number:,} entries, and {MAX_LINES:,} are allowed")
        now = self._store.now()
        lines = [check_log_entry(entry, now) for entry in batch_entries]
        groups = [lines[n : n + _PER_RECORD] for n in range(0, len(lines), _PER_RECORD)]
        if groups:
            batch: list[tuple[FactType, TaskFact]] = [
                ("task_log", TaskFact(lines=tuple(group))) for group in groups
            ]
            await self._append(ref, batch, guard)

    async def logs(self, ref: TaskRef, options: Any = None) -> list[LogEntry]:
        """Return log entries: filters first, then offset and limit. Raises Refused."""
        chosen = check_log_options(options)
        skip, limit = chosen.offset, chosen.limit
        entries: list[LogEntry] = []
        if limit == 0:
            return entries
        matches = _log_filter(chosen)
        async for entry in self._lines(ref):
            if not matches(entry):
                continue
            if skip > 0:
                skip -= 1
                continue
            entries.append(entry)
            if limit is not None and len(entries) >= limit:
                break
        return entries

    async def newest_logs(self, ref: TaskRef, limit: int) -> list[LogEntry]:
        """Return the newest log entries, oldest first, without reading the others."""
        entry = await get_task(self._store, ref)
        try:
            head = (await self._store.read(entry.stream, limit=0)).head
        except (NoStream, Gone):
            return []
        newest = self.records(ref, max(0, head - limit))  # every record has a line, or none
        lines = [line async for item in newest for line in facts.decode(item.data).lines]
        return lines[-limit:]

    async def _lines(self, ref: TaskRef) -> AsyncIterator[LogEntry]:
        async for item in self.records(ref):
            for line in facts.decode(item.data).lines:
                yield line

    async def records(self, ref: TaskRef, after: int = 0) -> AsyncIterator[Record]:
        """Yield the records of a task's stream; none for an unknown task."""
        entry = await find_task(self._store, ref)
        if entry is not None:
            stream, exists = entry.stream, True
            after = max(after, entry.record.since)
        else:
            stream, exists = await live_stream(self._store, ref)
        while exists:
            try:
                piece = await self._store.read(stream, after=after, limit=_PAGE)
            except (NoStream, Gone):
                return
            for item in piece.records:
                yield item
                after = item.seq
            if not piece.records or after >= piece.head:
                return

    async def follow(
        self, ref: TaskRef, after: int = 0
    ) -> AsyncIterator[tuple[int, Sequence[LogEntry]] | None]:
        """Yield the lines of each record, also of those to come; None when nothing comes.

        Ends when the task is deleted.
        """
        entry = await find_task(self._store, ref)
        stream = None if entry is None else entry.stream
        after = max(after, 0 if entry is None else entry.record.since)
        while stream is not None:
            try:
                piece = await self._store.read(stream, after=after, limit=_PAGE)
            except (NoStream, Gone):
                return
            for item in piece.records:
                after = item.seq
                lines = facts.decode(item.data).lines
                if lines:
                    yield after, lines
            if not piece.records:
                yield None
                await self._store.changed(FOLLOW_S)

    # --- decisions ----------------------------------------------------------------------------

    async def append_decision(
        self, ref: TaskRef, decision: Any, guard: LockInfo | None = None
    ) -> AgentDecision:
        """Append a decision of an agent. Raises Refused."""
        checked = check_decision(decision, self._store.now())
        await self._append(ref, [("task_decision", TaskFact(decision=checked))], guard)
        return checked

    async def decisions(self, ref: TaskRef) -> list[AgentDecision]:
        """Return all decisions, oldest first."""
        entries = [facts.decode(item.data).decision async for item in self.records(ref)]
        return [decision for decision in entries if decision is not None]

    # --- commits ------------------------------------------------------------------------------

    async def _append(
        self, ref: TaskRef, batch: Sequence[tuple[FactType, TaskFact]], guard: LockInfo | None
    ) -> None:
        await self._commit(ref, batch, None, guard)

    async def _commit(
        self,
        ref: TaskRef,
        batch: Sequence[tuple[FactType, TaskFact]],
        state: tuple[TaskState, int] | None,
        guard: LockInfo | None,
    ) -> None:
        while True:
            entry = await find_task(self._store, ref)
            stream = entry.stream if entry else (await live_stream(self._store, ref))[0]
            home = None if entry is None else entry.record
            if home is None:
                self._mirror.place.create()
            commit = TaskCommit(stream, ref.tenant, batch, state=state, guard=guard, home=home)
            try:
                await self._writer.commit(commit)
            except Gone:
                if state is not None:  # its version belonged to the task that was deleted
                    raise VersionMoved("the task was deleted", stream=stream) from None
                continue
            return


def check_log_options(options: Any) -> LogOptions:
    """Return valid options from a value, a mapping or None. Raises Refused INVALID_REQUEST."""
    value = from_mapping({} if options is None else options, LogOptions, "options")
    if value.limit is not None:
        check_count(value.limit, "limit")
    check_count(value.offset, "offset")
    if value.level is not None and value.level not in ("info", "warn", "error", "debug"):
        raise invalid(f"{str(value.level)[:40]!a} is not a level: use info, warn, error or debug")
    for label, moment in (("start_date", value.start_date), ("end_date", value.end_date)):
        if moment is not None:
            parse_instant(moment, label)
    return value


def _log_filter(options: LogOptions) -> Callable[[LogEntry], bool]:
    """Return a function that says whether an entry matches; the dates are inclusive."""
    level, start, end = options.level, options.start_date, options.end_date
    first = None if start is None else parse_instant(start, "start_date")
    last = None if end is None else parse_instant(end, "end_date")

    def matches(entry: LogEntry) -> bool:
        if level is not None and level != entry.level:
            return False
        if first is None and last is None:
            return True
        at = parse_instant(entry.timestamp, "timestamp")
        return (first is None or at >= first) and (last is None or at <= last)

    return matches
