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
from perdure.core.session.child_tasks import MAIL, TASK, ChildTask, TaskChange, follow_session
from perdure.core.session.naming import SessionRecord
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


class Commits:
    """Commits facts of sessions to the store."""

    def __init__(self, store: Store, outbox: Outbox) -> None:
        self._store = store
        self._outbox = outbox

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put], *, reserved_until: int | None = None
    ) -> Heads:
        """Commit facts; return the new heads. Raises what the store raises for these streams.

        A parent that was erased gets nothing. `reserved_until` reserves the outcome of a run that
        starts here for a caller that waits for it.
        """
        children = [record for put in puts if (record := _child_record(put)) is not None]
        if not children:
            return await self._store.commit(*self._outbox.with_deliveries(writes, puts))
        gone: set[str] = set()
        while True:
            part = _ParentPart()
            for record in children:
                await self._add_parent(part, record, writes, reserved_until, gone)
            all_writes, all_puts = [*writes, *part.writes], [*puts, *part.puts]
            try:
                return await self._store.commit(*self._outbox.with_deliveries(all_writes, all_puts))
            except VersionMoved as error:
                if not part.has_put(error.entry):
                    raise
            except (Gone, NoStream) as error:
                if error.stream not in part.parents:
                    raise
                gone.add(error.stream)

    async def _add_parent(
        self,
        part: _ParentPart,
        record: SessionRecord,
        writes: Sequence[Write],
        reserved_until: int | None,
        gone: set[str],
    ) -> None:
        key = child_tasks.task_key(record.tenant, record.background or "")
        entry = await self._store.get(TASK, key)
        if entry is None or entry.stream in gone:
            return  # its parent was erased
        task = child_tasks.decode_task(entry.data)
        write = next((w for w in writes if w.stream == task.stream), None)
        if write is None:
            return
        facts = [codec.decode(stored.type, stored.data) for stored in write.records]
        now = self._store.now()
        change = follow_session(task, record, facts, now)
        if change is not None:
            _add_change(part, entry, change, reserved_until, now)


def _add_change(
    part: _ParentPart, entry: Entry, change: TaskChange, reserved_until: int | None, now: int
) -> None:
    task = change.task
    if task.is_active:
        task = child_tasks.reserved(task, reserved_until)
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


def _child_record(put: Put) -> SessionRecord | None:
    """Return the session record of a put, if the session is a background agent."""
    if put.kind != "session" or not isinstance(put.data, bytes) or _MARK not in put.data:
        return None
    record = index.decode(put.data)
    return None if record.background is None else record
