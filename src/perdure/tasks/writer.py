"""Commits to the streams of tasks: facts, rows and states together, then the files."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perdure.store.base import (
    DELETE,
    Check,
    Entry,
    Heads,
    Lease,
    Put,
    Record,
    Release,
    Store,
    VersionMoved,
    Write,
)
from perdure.tasks.entries import TaskEntry, commit_guarded
from perdure.tasks.files.mirror import CommittedChange, TaskMirror
from perdure.tasks.locks.values import LockInfo
from perdure.tasks.model import facts, record, state_file
from perdure.tasks.model.facts import MESSAGES, FactType, LogEntry, LogLevel, TaskFact
from perdure.tasks.model.record import TaskRecord
from perdure.tasks.model.state_file import TaskState
from perdure.views.base import iso


@dataclass(frozen=True, slots=True)
class LeaseStep:
    """Part of a commit that concerns the lease on the stream: claim it, or write under it."""

    claim: str | None = None  # the holder that claims it
    fence: Lease | None = None
    head: int | None = None
    release: Release | None = None


@dataclass(frozen=True, slots=True)
class TaskCommit:
    """One commit to a task's stream: conditions, facts, and the entries that it puts."""

    stream: str
    tenant: str
    facts: Sequence[tuple[FactType, TaskFact]] = ()
    row: TaskEntry | None = None  # its next version
    state: tuple[TaskState, int] | None = None  # with its next version
    puts: Sequence[Put] = ()
    guard: LockInfo | None = None
    home: TaskRecord | None = None  # the row that says where the files are; None: here
    has_files: bool = True  # False: rows only, whose files the first other commit writes
    checks: Sequence[Check] = ()
    lease: LeaseStep | None = None


def new_fact(
    kind: FactType,
    now: int,
    level: LogLevel = "info",
    data: dict[str, Any] | None = None,
    **fields: Any,
) -> tuple[FactType, TaskFact]:
    """Return a fact with its log line."""
    line = LogEntry(timestamp=iso(now), level=level, message=MESSAGES[kind], data=data)
    return kind, TaskFact(lines=(line,), **fields)


class TaskWriter:
    """Writes to tasks: one commit in the store, then the files if they are here."""

    def __init__(self, store: Store, mirror: TaskMirror) -> None:
        self._store = store
        self._mirror = mirror

    async def commit(self, commit: TaskCommit) -> int:
        """Commit, and return the stream's new head.

        Raises the refusals of the store, and Conflict VERSION_CONFLICT for a stale guard.
        """
        return (await self.commit_heads(commit))[commit.stream]

    async def commit_heads(self, commit: TaskCommit) -> Heads:
        """Do the same, and return the heads with the lease of a claim."""
        if not commit.has_files:
            return await self._commit(commit, ())
        if not self._mirror.is_here(commit.home):
            return await self._commit_elsewhere(commit)
        async with self._mirror.around_commit(commit.stream) as changes:
            heads = await self._commit(commit, ())
            changes.append(_change(commit, heads[commit.stream]))
        return heads

    async def _commit(self, commit: TaskCommit, more: Sequence[Put]) -> Heads:
        now = self._store.now()
        records = [Record(kind, facts.encode(fact), now) for kind, fact in commit.facts]
        write = _write(commit, records, now)
        puts = [*commit.puts, *more]
        if commit.row is not None:
            puts += commit.row.puts
        if commit.state is not None:
            puts.append(_state_put(commit, *commit.state))
        return await commit_guarded(
            self._store, [write], puts, commit.guard, commit.tenant, commit.checks
        )

    async def _commit_elsewhere(self, commit: TaskCommit) -> Heads:
        """Commit with an entry that lets the machine of the files bring them up to date."""
        home = commit.home
        key = "" if home is None else f"{home.root}/{record.task_key(home.tenant, home.id)}"
        while True:
            stale: list[Put] = []
            if home is not None and await self._store.get(record.STALE, key) is None:
                stale = [Put(record.STALE, key, 0, commit.stream, home.root, None, b"{}")]
            try:
                return await self._commit(commit, stale)
            except VersionMoved as error:
                if error.entry is None or error.entry.kind != record.STALE:
                    raise

    async def forget_stale(self, entry: Entry) -> None:
        """Remove the entry of a task whose files were brought up to date."""
        put = Put(record.STALE, entry.key, entry.version, entry.stream, "", None, DELETE)
        await self._store.commit([Write(entry.stream)], [put])


def _write(commit: TaskCommit, records: Sequence[Record], now: int) -> Write:
    step = commit.lease
    if step is None:
        return Write(commit.stream, records, create=record.STREAM_KIND)
    if step.claim is not None:
        return Write(commit.stream, records, wake=now, claim=step.claim)
    return Write(commit.stream, records, step.fence, step.head, release=step.release)


def _state_put(commit: TaskCommit, state: TaskState, version: int) -> Put:
    key = record.task_key(commit.tenant, state.task_id)
    data = state_file.encode_state(state)
    return Put(record.STATE, key, version - 1, commit.stream, "saved", None, data)


def _change(commit: TaskCommit, head: int) -> CommittedChange:
    row = None if commit.row is None else (commit.row.record, commit.row.version)
    return CommittedChange(head, [fact for _, fact in commit.facts], row, commit.state)
