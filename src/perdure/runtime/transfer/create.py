"""Creation of sessions from an existing log, in one commit."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from perdure.core.driver.effects import Park
from perdure.core.driver.plan import DriveView, plan
from perdure.core.log import events
from perdure.core.log.events import StampedEvent
from perdure.core.pending.record import PendingRecord
from perdure.core.session import naming as index
from perdure.core.session import queues
from perdure.core.session.child_tasks import END_STATUSES, ChildTask, rebuilt_task
from perdure.core.session.children import BACKGROUND_AUTHOR, TaskStatus
from perdure.core.session.naming import MOST_WAITING, SessionRecord
from perdure.core.session.state import State, fold
from perdure.core.transfer.open_calls import open_records
from perdure.runtime.inbox.commits import task_puts
from perdure.runtime.inbox.message_keys import message_key_puts
from perdure.runtime.inbox.sessions import NewMessage
from perdure.runtime.records.entries import (
    SessionEntry,
    pending_put,
    session_put,
)
from perdure.runtime.records.log import as_record
from perdure.store.base import Entry, Gone, Put, Record, Store, Write


class SessionNames(NamedTuple):
    """The names of a session: its tenant, id, agent and queue."""

    tenant: str
    session_id: str
    agent: str
    queue: str = queues.DEFAULT


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session to create: its entry, log and open calls."""

    record: SessionRecord
    log: Sequence[StampedEvent]
    records: Sequence[Record]
    calls: Sequence[PendingRecord] = ()
    wake: int | None = None
    epoch: int = 0
    replaces: str | None = None  # the stream that the same commit erases
    kept: Sequence[Entry] = ()  # entries of that stream that the session keeps


def session_record(names: SessionNames, log: Sequence[StampedEvent], state: State) -> SessionRecord:
    """Return the record of a session with this log, for its entry."""
    tenant, session_id, agent, queue = names
    message = next((item.event for item in log if isinstance(item.event, events.User)), None)
    return SessionRecord(
        id=session_id,
        tenant=tenant,
        agent=agent,
        queue=queue,
        task_id=None if state.run is None else state.run.id,
        state=state.status,
        created_at=state.created_at,
        updated_at=state.updated_at,
        metadata=index.index_metadata(state.metadata),
        title="" if message is None else NewMessage(message.content, redact=message.redact).title,
        head=state.head,
        turns=state.turn,
        usage=dict(state.usage),
        waiting=tuple(state.pending_ids[:MOST_WAITING]),
        parent=None if state.launch is None else state.launch.parent,
        background=None if state.launch is None else state.launch.task_id,
        ancestry=() if state.launch is None else state.launch.ancestry,
    )


def last_epoch(log: Sequence[StampedEvent]) -> int:
    """Return the highest epoch of a log.

    The stream has at least this one: no driver may mistake an old driver's call for its own.
    """
    with_epoch = (events.ToolStarted, events.Pending)
    marked = [item.event for item in log if isinstance(item.event, with_epoch)]
    return max((event.epoch for event in marked if event.epoch is not None), default=0)


def wake_instant(state: State, epoch: int, now: int) -> int | None:
    """Return when a driver has something to do in a session; None: it waits for others."""
    effect = plan(state, DriveView(epoch=epoch + 1), now)
    return effect.due if isinstance(effect, Park) else now


def session_from_log(
    names: SessionNames,
    log: Sequence[StampedEvent],
    now: int,
    entries: Iterable[PendingRecord] = (),
) -> NewSession:
    """Return the session of a log, with its open calls, due if its driver has something to do.

    `entries` are the records of its calls as far as they are known; the log counts.
    """
    state = fold(log)
    epoch = last_epoch(log)
    tenant, session_id, agent, _ = names
    records = {record.id: record for record in entries}
    calls = open_records(log, session_id, tenant, agent)
    return NewSession(
        session_record(names, log, state),
        log,
        [as_record(item.event, item.at) for item in log],
        [_complete_record(call, records.get(call.id)) for call in calls],
        wake_instant(state, epoch, now),
        epoch,
    )


def _complete_record(record: PendingRecord, entry: PendingRecord | None) -> PendingRecord:
    """Add the fields that only the entry of a call has."""
    if entry is None:
        return record
    return msgspec.structs.replace(
        record,
        on_expire=entry.on_expire,
        late=entry.late,
        progress=entry.progress,
        ancestry=entry.ancestry,
        hooks=entry.hooks,
    )


async def create_session(store: Store, session: NewSession) -> SessionEntry:
    """Create a session. Raises HeadMoved or VersionMoved if it or one of its calls exists.

    Raises Gone if the stream that it replaces was deleted meanwhile.
    """
    record, generation = session.record, 1
    while True:
        stream = index.session_stream(record.tenant, record.id, generation)
        generation += 1  # the name of a stream is never reused
        if stream == session.replaces:
            continue
        entry = session_put(record, 0, stream)
        calls = [pending_put(call, 0, stream) for call in session.calls]
        try:
            puts = [entry, *calls, *_keys(session.log, stream), *_children(session, stream)]
            puts += _kept_puts(session, stream, puts)
            await store.commit(_writes(session, stream), puts)
        except Gone as error:
            if error.stream == session.replaces:
                raise
            continue  # this name was used and deleted
        return SessionEntry.from_put(entry)


def _writes(session: NewSession, stream: str) -> list[Write]:
    write = Write(
        stream,
        session.records,
        create=index.stream_kind(session.record.agent, session.record.queue),
        head=0,
        wake=session.wake,
        epoch=session.epoch,
    )
    old = session.replaces
    return [write] if old is None else [Write(old, erase=True), write]


def _kept_puts(session: NewSession, stream: str, puts: Sequence[Put]) -> list[Put]:
    """Return the puts of entries that move to the new stream; some have its name in their key."""
    written = {(put.kind, put.key) for put in puts}
    kept: list[Put] = []
    for entry in session.kept:
        key = entry.key
        if key == entry.stream or key.startswith(f"{entry.stream}|"):
            key = stream + key.removeprefix(entry.stream)
        if (entry.kind, key) not in written:
            place = (entry.listing, entry.at)
            kept.append(Put(entry.kind, key, 0, stream, entry.state, entry.due, entry.data, *place))
    return kept


def _children(session: NewSession, stream: str) -> list[Put]:
    """Return the entries of the background agents that the session launched, and its own.

    That of a child belongs to its parent, and only one without a parent is its own.
    """
    state, record = fold(session.log), session.record
    instants = (state.created_at, state.updated_at)
    tasks = [rebuilt_task(child, record, *instants) for child in state.children.values()]
    if state.launch is not None and state.launch.parent is None:
        tasks.append(_own_task(session, state, stream))
    return [put for task in tasks for put in task_puts(task, None, stream)]


def _own_task(session: NewSession, state: State, stream: str) -> ChildTask:
    launch, run, record = state.launch, state.run, session.record
    is_over = run is not None and run.end is not None
    resumes, active = count_resumes(session.log)
    return ChildTask(
        id="" if launch is None else launch.task_id,
        session_id=record.id,
        stream=stream,
        tenant=record.tenant,
        agent=record.agent,
        description="" if launch is None else launch.description,
        status=END_STATUSES[record.state] if is_over else active,
        run=record.task_id or "",
        number=1 if run is None else run.number,
        resume_count=resumes,
        is_queued=bool(state.queued),
        created_at=state.created_at,
        updated_at=state.updated_at,
    )


def count_resumes(log: Sequence[StampedEvent]) -> tuple[int, TaskStatus]:
    """Return how many runs follow-ups have started, and the status of the last run until it ends.

    A notification starts a run that is not a resume, and so does a caller after a failed one.
    """
    runs, count = set[str](), 0
    status: TaskStatus = "running"
    for stamped in log:
        match event := stamped.event:
            case events.User():
                run, is_message = event.task_id, event.by != BACKGROUND_AUTHOR
            case events.AgentStart() if not event.worker:
                run, is_message = event.run, False
            case _:
                continue
        if run is None or run in runs:
            continue
        is_resume = is_message and bool(runs)
        runs.add(run)
        count += is_resume
        status = "resumed" if is_resume else "running"
    return count, status


def _keys(log: Sequence[StampedEvent], stream: str) -> list[Put]:
    """Return the entries of the messages that were sent with a key."""
    kinds = events.User | events.FollowUpQueued
    messages = [item.event for item in log if isinstance(item.event, kinds)]
    keyed = {message.key: message for message in messages if message.key is not None}
    return [
        put
        for key, message in keyed.items()
        for put in message_key_puts(key, message.content, stream)
    ]
