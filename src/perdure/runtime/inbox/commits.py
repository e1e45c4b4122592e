"""Commits of facts, with the webhook deliveries and the changes of parents that belong to them.

If a commit starts or ends a run of a background agent, the same commit writes that to its parent:
an event that wakes it, the task's entry, and the mail with the outcome.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from msgspec import Struct, field

from perdure.core.log import codec
from perdure.core.log.events import Event
from perdure.core.session import child_tasks
from perdure.core.session import naming as index
from perdure.core.session.child_tasks import (
    CLEARED,
    MAIL,
    TASK,
    ChildTask,
    TaskChange,
    follow_session,
)
from perdure.core.session.children import Reservation
from perdure.core.session.follow_ups import NO_RULES, FollowUpRules, check_follow_up
from perdure.core.session.naming import SessionRecord
from perdure.errors import Corrupt, StoreError
from perdure.runtime.records.cache import SessionCache
from perdure.runtime.records.log import as_record
from perdure.runtime.webhooks.outbox import Outbox
from perdure.store.base import (
    DELETE,
    Check,
    Entry,
    Gone,
    Heads,
    NoStream,
    Put,
    Store,
    VersionMoved,
    Write,
)
from perdure.tasks.model.record import BACKGROUND, ListState, newest_first_key

_MARK: Final = b'"background":'


_Commit = tuple[Sequence[Write], Sequence[Put], Sequence[Check]]


class _ParentPart(Struct):
    """Part of a commit to children that is written to their parents."""

    writes: list[Write] = field(default_factory=list)
    puts: list[Put] = field(default_factory=list)
    facts: dict[str, Sequence[Event]] = field(default_factory=dict)  # of the writes, by stream
    tasks: list[Entry] = field(default_factory=list)  # as they are after the commit

    @property
    def parents(self) -> set[str]:
        return {write.stream for write in self.writes}

    def has_put(self, entry: Entry | None) -> bool:
        """Return whether an entry is one that this part puts."""
        return entry is not None and any(
            (put.kind, put.key) == (entry.kind, entry.key) for put in self.puts
        )


class ChildEntry(Struct, frozen=True):
    """Index entry of a background task, decoded."""

    entry: Entry
    task: ChildTask

    @classmethod
    def decode(cls, entry: Entry) -> "ChildEntry":
        """Decode an index entry. Raises Corrupt."""
        return cls(entry, child_tasks.decode_task(entry.data))


class FollowUp(Struct):
    """A message to a background task, which must allow it when it is committed."""

    rules: FollowUpRules = NO_RULES
    reservation: Reservation | None = None  # of its outcome, for a caller that waits
    task: ChildTask | None = None  # as the commit has left it


class Commits:
    """Commits facts of sessions to the store."""

    def __init__(self, store: Store, outbox: Outbox, cache: SessionCache) -> None:
        self._store = store
        self._outbox = outbox
        self._cache = cache

    async def commit(
        self,
        writes: Sequence[Write],
        puts: Sequence[Put],
        follow_up: FollowUp | None = None,
        checks: Sequence[Check] = (),
    ) -> Heads:
        """Commit facts; return the new heads. Raises what the store raises for these streams.

        A parent that was erased gets nothing. Raises Conflict or NotFound if a follow-up comes to
        a task that does not allow it.
        """
        children = []
        for put in puts:
            if put.kind == "session" and isinstance(put.data, bytes) and _MARK in put.data:
                record = index.decode(put.data)
                children += [] if record.background is None else [(put.stream, record)]
        if not children:
            return await self._store.commit(*self._outbox.with_deliveries(writes, puts), checks)
        gone: set[str] = set()
        while True:
            part = _ParentPart()
            for stream, record in children:
                write = next(write for write in writes if write.stream == stream)
                await self._add_parent(part, record, write, follow_up, gone)
            commit = ([*writes, *part.writes], [*puts, *part.puts], checks)
            with _parent_errors(part):
                heads = await self._try_commit(commit, part, gone)
            if heads is not None:
                return heads

    async def _try_commit(self, commit: _Commit, part: _ParentPart, gone: set[str]) -> Heads | None:
        """Commit; return None if a parent was refused, which is `gone` or has changed."""
        writes, puts, checks = commit
        try:
            heads = await self._store.commit(*self._outbox.with_deliveries(writes, puts), checks)
        except VersionMoved as error:
            await self._check_moved(part, error)
            self._forget_tasks(part)
            return None
        except (Gone, NoStream) as error:
            if error.stream not in part.parents:
                raise
            # A repair replaces the stream of a parent: only a task that was read says whose it is.
            if not self._forget_tasks(part):
                gone.add(error.stream)
            return None
        for task in part.tasks:
            self._cache.add_task(task)
        for write in part.writes:
            self._cache.extend(write, part.facts.get(write.stream, ()), heads)
        return heads

    async def _check_moved(self, part: _ParentPart, error: VersionMoved) -> None:
        """Raise the error if the part of the parents is not what was refused.

        Raises Corrupt if their tasks are as they were read, and yet an entry beside one is missing.
        """
        if error.entry is not None or error.stream not in part.parents:
            if not part.has_put(error.entry):
                raise error
            return
        tasks = {put.key: put.expect for put in part.puts if put.kind == TASK}
        entries = [await self._store.get(TASK, key) for key in tasks]
        if all(entry is not None and entry.version == tasks[entry.key] for entry in entries):
            text = f"an entry of {error.stream} is missing: {error.message}"
            raise Corrupt(text, hint="run perdure doctor", details={"stream": error.stream})

    def _forget_tasks(self, part: _ParentPart) -> bool:
        """Forget the cached tasks that a refused commit was based on; return whether it was."""
        tasks = [self._cache.remove_task(task.key) for task in part.tasks]
        return any(tasks)

    async def _add_parent(
        self,
        part: _ParentPart,
        record: SessionRecord,
        write: Write,
        follow_up: FollowUp | None,
        gone: set[str],
    ) -> None:
        with _parent_errors(None if record.parent is None else part):
            entry = await self._task_entry(record, write.stream, follow_up)
            if entry is None or entry.stream in gone:
                return  # its parent was erased
            task = child_tasks.decode_task(entry.data)
        if follow_up is not None:
            check_follow_up(task, follow_up.rules)
        facts = [codec.decode(stored.type, stored.data) for stored in write.records]
        now = self._store.now()
        change = follow_session(task, record, facts, now)
        if change is not None:
            _add_change(part, entry, change, follow_up, now)

    async def _task_entry(
        self, record: SessionRecord, stream: str, follow_up: FollowUp | None
    ) -> Entry | None:
        """Return the entry of a child's task: the cached one, if it may be the present one.

        A commit to the child is conditional on its own entry, which has the same run. So a cached
        task with that run, not ended, can only have other details, and then its put is refused. The
        entry of a task without a parent belongs to the child's own stream, which a repair replaces.
        """
        key = child_tasks.task_key(record.tenant, record.background or "")
        guess = None if follow_up is not None else self._cache.task(key)
        if guess is not None:
            task = child_tasks.decode_task(guess.data)
            is_there = task.parent is not None or guess.stream == stream
            if is_there and task.is_active and task.run == record.task_id:
                return guess
        return await self._store.get(TASK, key)


@contextmanager
def _parent_errors(part: _ParentPart | None) -> Iterator[None]:
    """Raise StoreError instead of Corrupt if a parent is damaged: the child itself is not.

    So a driver of the child tries again later, and finds the parent repaired.
    """
    try:
        yield
    except Corrupt as error:
        stream = error.details.get("stream")
        if part is None or (stream is not None and stream not in part.parents):
            raise
        text = f"the session that launched it is damaged: {error.message}"
        hint = "perdure doctor --fix repairs it"
        raise StoreError(text, code="PARENT_DAMAGED", hint=hint) from error


def _add_change(
    part: _ParentPart, entry: Entry, change: TaskChange, follow_up: FollowUp | None, now: int
) -> None:
    task = change.task
    if task.is_active and follow_up is not None:
        task = follow_up.task = child_tasks.reserved(task, follow_up.reservation)
    puts = task_puts(task, entry, entry.stream)
    part.puts += puts
    part.tasks.append(entry_after(puts[0]))
    if task.parent is None:
        return  # its entry belongs to its own stream, and nobody is notified
    records = [as_record(fact, now) for fact in change.facts]
    part.writes.append(Write(entry.stream, records, wake=now if change.wakes else None))
    part.facts[entry.stream] = change.facts
    if change.mail is not None:
        key = child_tasks.mail_key(task.tenant, change.mail.id)
        data = child_tasks.encode(change.mail)
        part.puts.append(Put(MAIL, key, 0, entry.stream, "open", None, data))


def entry_after(put: Put) -> Entry:
    """Return the entry that a committed put of a task has left."""
    data = put.data if isinstance(put.data, bytes) else b""
    return Entry(put.kind, put.key, put.stream, put.expect + 1, put.state, put.due, data)


def task_puts(task: ChildTask, before: Entry | None, stream: str) -> list[Put]:
    """Return the puts of a task's entry and of its list entry; `before` is its present entry.

    Both are always put together, so they always have the same version. A task that was cleared
    has no list entry.
    """
    expect, data = (0 if before is None else before.version), child_tasks.encode(task)
    puts = [Put(TASK, task.key, expect, stream, task.entry_state, None, data)]
    is_listed = before is None or before.state != CLEARED
    if is_listed and not (before is None and task.is_cleared):
        key = newest_first_key(task.created_at, task.tenant, task.id)
        state = ListState("background", task.tenant, task.status).text
        listed = DELETE if task.is_cleared else data
        puts.append(Put(BACKGROUND, key, expect, stream, state, None, listed))
    return puts


def unsaved(error: StoreError) -> StoreError:
    """Return the error of a run whose progress the store did not take."""
    return StoreError(
        f"failed to save execution state: {error.message}", code=error.code, hint=error.hint
    )
