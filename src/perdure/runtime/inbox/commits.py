"""Commits of facts, with the webhook deliveries and the changes of parents that belong to them.

If a commit starts or ends a run of a background agent, the same commit writes that to its parent:
an event that wakes it, the task's entry, and the mail with the outcome.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct, field

from perdure.core.log import codec
from perdure.core.session import child_tasks
from perdure.core.session import naming as index
from perdure.core.session.child_tasks import (
    MAIL,
    TASK,
    ChildTask,
    TaskChange,
    check_resumable,
    follow_session,
)
from perdure.core.session.naming import SessionRecord
from perdure.runtime.records.cache import SessionCache
from perdure.runtime.records.log import as_record
from perdure.runtime.webhooks.outbox import Outbox
from perdure.store.base import Entry, Gone, Heads, NoStream, Put, Store, VersionMoved, Write

_MARK: Final = b'"background":'


class _ParentPart(Struct):
    """Part of a commit to children that is written to their parents."""

    writes: list[Write] = field(default_factory=list)
    puts: list[Put] = field(default_factory=list)

    @property
    def parents(self) -> set[str]:
        return {write.stream for write in self.writes}

    def has_put(self, entry: Entry | None) -> bool:
        """Return whether an entry is one that this part puts."""
        return entry is not None and any(
            (put.kind, put.key) == (entry.kind, entry.key) for put in self.puts
        )


class FollowUp(Struct, frozen=True):
    """A message to a background task that must have completed when it is committed."""

    reserved_until: int | None = None  # its outcome is for a caller that waits until then


class Commits:
    """Commits facts of sessions to the store."""

    def __init__(self, store: Store, outbox: Outbox, cache: SessionCache) -> None:
        self._store = store
        self._outbox = outbox
        self._cache = cache

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put], follow_up: FollowUp | None = None
    ) -> Heads:
        """Commit facts; return the new heads. Raises what the store raises for these streams.

        A parent that was erased gets nothing. Raises Conflict or NotFound if a follow-up comes to
        a task that has not completed.
        """
        children = [child for put in puts if (child := _child(put)) is not None]
        if not children:
            return await self._store.commit(*self._outbox.with_deliveries(writes, puts))
        gone: set[str] = set()
        while True:
            part = _ParentPart()
            for stream, record in children:
                write = next(write for write in writes if write.stream == stream)
                await self._add_parent(part, record, write, follow_up, gone)
            heads = await self._try_commit([*writes, *part.writes], [*puts, *part.puts], part, gone)
            if heads is not None:
                return heads

    async def _try_commit(
        self, writes: Sequence[Write], puts: Sequence[Put], part: _ParentPart, gone: set[str]
    ) -> Heads | None:
        """Commit; return None if a parent was refused, which is `gone` or has changed."""
        try:
            heads = await self._store.commit(*self._outbox.with_deliveries(writes, puts))
        except VersionMoved as error:
            if not part.has_put(error.entry):
                raise
            return None
        except (Gone, NoStream) as error:
            if error.stream not in part.parents:
                raise
            gone.add(error.stream)
            return None
        for parent in part.parents:
            self._cache.notify(parent, heads[parent])
        return heads

    async def _add_parent(
        self,
        part: _ParentPart,
        record: SessionRecord,
        write: Write,
        follow_up: FollowUp | None,
        gone: set[str],
    ) -> None:
        key = child_tasks.task_key(record.tenant, record.background or "")
        entry = await self._store.get(TASK, key)
        if entry is None or entry.stream in gone:
            return  # its parent was erased
        task = child_tasks.decode_task(entry.data)
        if follow_up is not None:
            check_resumable(task)
        facts = [codec.decode(stored.type, stored.data) for stored in write.records]
        now = self._store.now()
        change = follow_session(task, record, facts, now)
        if change is not None:
            _add_change(part, entry, change, follow_up, now)


def _add_change(
    part: _ParentPart, entry: Entry, change: TaskChange, follow_up: FollowUp | None, now: int
) -> None:
    task = change.task
    if task.is_active and follow_up is not None:
        task = child_tasks.reserved(task, follow_up.reserved_until)
    part.puts.append(task_put(task, entry.version, entry.stream))
    if task.parent is None:
        return  # its entry belongs to its own stream, and nobody is notified
    part.writes.append(Write(entry.stream, [as_record(change.fact, now)], wake=now))
    if change.mail is not None:
        key = child_tasks.mail_key(task.tenant, change.mail.id)
        data = child_tasks.encode(change.mail)
        part.puts.append(Put(MAIL, key, 0, entry.stream, "open", None, data))


def task_put(task: ChildTask, expect: int, stream: str) -> Put:
    """Return the put of a task's entry."""
    return Put(TASK, task.key, expect, stream, task.entry_state, None, child_tasks.encode(task))


def _child(put: Put) -> tuple[str, SessionRecord] | None:
    """Return the stream and the session record of a put, if it is of a background agent."""
    if put.kind != "session" or not isinstance(put.data, bytes) or _MARK not in put.data:
        return None
    record = index.decode(put.data)
    return None if record.background is None else (put.stream, record)
