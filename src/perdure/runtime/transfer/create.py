"""A session made from a log that is there already, whole or not at all: one commit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perdure.core.driver.effects import Park
from perdure.core.driver.plan import DriveView, plan
from perdure.core.log import events
from perdure.core.log.events import Stamped
from perdure.core.pending.record import PendingRecord
from perdure.core.session import naming as index
from perdure.core.session import queues
from perdure.core.session.naming import SessionRecord, check_id
from perdure.core.session.state import State, fold
from perdure.core.transfer.forks import copied, settled_point
from perdure.core.transfer.open_calls import open_records
from perdure.errors import Conflict
from perdure.runtime.ids import new_id
from perdure.runtime.inbox.sessions import NewMessage, key_put
from perdure.runtime.records.entries import (
    SessionEntry,
    erased_as_not_found,
    pending_put,
    session_put,
)
from perdure.runtime.records.log import Log, as_record
from perdure.store.base import Gone, HeadMoved, Put, Record, Store, VersionMoved, Write


class SessionNames(NamedTuple):
    """What a session is called, whose it is, and for which workers."""

    tenant: str
    session_id: str
    agent: str
    queue: str = queues.DEFAULT


@dataclass(frozen=True, slots=True)
class NewSession:
    """What to write: the entry, the log, and what of it waits."""

    record: SessionRecord
    log: Sequence[Stamped]
    records: Sequence[Record]
    calls: Sequence[PendingRecord] = ()
    wake: int | None = None
    epoch: int = 0
    replaces: str | None = None  # the stream that goes in the same commit


def listed(names: SessionNames, log: Sequence[Stamped], state: State) -> SessionRecord:
    """The entry of a session with this log."""
    tenant, session_id, agent, queue = names
    said = next((one.event for one in log if isinstance(one.event, events.User)), None)
    return SessionRecord(
        id=session_id,
        tenant=tenant,
        agent=agent,
        queue=queue,
        task_id=None if state.run is None else state.run.id,
        state=state.status,
        created_at=state.created_at,
        updated_at=state.updated_at,
        metadata=index.listed_metadata(state.metadata),
        title="" if said is None else NewMessage(said.content, redact=said.redact).title,
    )


def from_log(names: SessionNames, log: Sequence[Stamped], now: int) -> NewSession:
    """The session that a log tells of, with its open calls, due when there is something to do."""
    state = fold(log)
    # Above every epoch that the log names: nobody here may take an old driver's call for its own.
    driven = (events.ToolStarted, events.Pending)
    epochs = [e.epoch for _, _, e in log if isinstance(e, driven) and e.epoch is not None]
    epoch = max(epochs, default=0)
    effect = plan(state, DriveView(epoch=epoch + 1), now)
    tenant, session_id, agent, _ = names
    return NewSession(
        listed(names, log, state),
        log,
        [as_record(one.event, one.at) for one in log],
        open_records(log, session_id, tenant, agent),
        effect.due if isinstance(effect, Park) else now,
        epoch,
    )


async def make(store: Store, making: NewSession) -> SessionEntry:
    """Write it. Raises HeadMoved or VersionMoved if it exists, or one of its calls does.

    Raises Gone if what it replaces was deleted meanwhile.
    """
    record, generation = making.record, 1
    while True:
        stream = index.stream_of(record.tenant, record.id, generation)
        generation += 1  # a stream's name is not used again
        if stream == making.replaces:
            continue
        entry = session_put(record, 0, stream)
        calls = [pending_put(one, 0, stream) for one in making.calls]
        try:
            puts = [entry, *calls, *_keys(making.log, stream)]
            await store.commit(_writes(making, stream), puts)
        except Gone as error:
            if error.stream == making.replaces:
                raise
            continue  # deleted here once
        return SessionEntry.put_as(entry)


def _writes(making: NewSession, stream: str) -> list[Write]:
    write = Write(
        stream,
        making.records,
        create=index.stream_kind(making.record.agent, making.record.queue),
        head=0,
        wake=making.wake,
        epoch=making.epoch,
    )
    old = making.replaces
    return [write] if old is None else [Write(old, erase=True), write]


def _keys(log: Sequence[Stamped], stream: str) -> list[Put]:
    """What remembers the messages that were sent under a key."""
    said = [one.event for one in log if isinstance(one.event, events.User)]
    keyed = {one.key: one for one in said if one.key is not None}
    return [
        put for key, one in keyed.items() for put in key_put(NewMessage(one.content, key), stream)
    ]


async def fork(
    store: Store, known: SessionEntry, *, at: int | None = None, session_id: str | None = None
) -> SessionEntry:
    """Copy it up to the last point, not after `at`, where every call had its result.

    One commit: there is a whole fork or none. Nothing of it runs by itself; the original is only
    read. Raises Refused AT_INVALID, Conflict SESSION_EXISTS.
    """
    source = known.record
    name = new_id("s") if session_id is None else check_id(session_id)
    log = Log(store, known.stream)
    with erased_as_not_found(source.id):
        await log.catch_up()
    cut = settled_point(log.events, at)
    whole = copied(log.events, cut, _Names())
    whole.append(Stamped(len(whole) + 1, store.now(), events.Forked(source=source.id, at=cut)))
    names = SessionNames(source.tenant, name, source.agent, source.queue)
    record = listed(names, whole, fold(whole))
    records = [as_record(one.event, one.at) for one in whole]
    try:
        return await make(store, NewSession(record, whole, records))
    except (HeadMoved, VersionMoved) as error:
        raise Conflict(
            f"there is a session {name!r} already",
            code="SESSION_EXISTS",
            hint="give the fork another id, or none",
            details={"sessionID": name},
        ) from error


class _Names(dict[str, str]):
    """A new name for each run, the same each time."""

    def __call__(self, task: str) -> str:
        return self.setdefault(task, new_id("task"))
