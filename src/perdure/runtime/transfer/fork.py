"""Fork of a session: a copy of its log up to a settled point."""

from perdure.core.log import events
from perdure.core.log.events import StampedEvent
from perdure.core.session.naming import check_id
from perdure.core.session.state import fold
from perdure.core.transfer.forks import copy_events, settled_point
from perdure.errors import Conflict
from perdure.runtime.ids import new_id
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.records.log import as_record, read_log
from perdure.runtime.transfer.create import (
    NewSession,
    SessionNames,
    create_session,
    session_record,
)
from perdure.store.base import HeadMoved, Store, VersionMoved


async def fork(
    store: Store, entry: SessionEntry, *, at: int | None = None, session_id: str | None = None
) -> SessionEntry:
    """Copy a session up to the last point, not after `at`, where every call had its result.

    One commit. Nothing of the fork runs by itself; the original is only read. Raises Refused
    AT_INVALID, Conflict SESSION_EXISTS.
    """
    source = entry.record
    name = new_id("s") if session_id is None else check_id(session_id)
    log = await read_log(store, entry)
    cut = settled_point(log.events, at)
    log_copy = copy_events(log.events, cut, _TaskIds())
    log_copy.append(
        StampedEvent(len(log_copy) + 1, store.now(), events.Forked(source=source.id, at=cut))
    )
    names = SessionNames(source.tenant, name, source.agent, source.queue)
    record = session_record(names, log_copy, fold(log_copy))
    records = [as_record(item.event, item.at) for item in log_copy]
    try:
        return await create_session(store, NewSession(record, log_copy, records))
    except (HeadMoved, VersionMoved) as error:
        raise Conflict(
            f"there is a session {name!r} already",
            code="SESSION_EXISTS",
            hint="pass another id for the fork, or none",
            details={"sessionID": name},
        ) from error


class _TaskIds(dict[str, str]):
    """A new task id for each run, the same each time."""

    def __call__(self, task: str) -> str:
        return self.setdefault(task, new_id("task"))
