"""Fork of a session: a copy of its log up to a settled point."""

from collections.abc import Sequence
from functools import partial

from perdure import host
from perdure.core.log import events
from perdure.core.log.events import StampedEvent
from perdure.core.session.naming import SessionRecord, check_id
from perdure.core.session.state import fold
from perdure.core.transfer.forks import copy_events, settled_point
from perdure.errors import Conflict, Corrupt
from perdure.ids import new_id
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.records.log import as_record, decode_record, reading
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
    AT_INVALID, Conflict SESSION_EXISTS, Corrupt if the log is damaged up to `at`.
    """
    name = new_id("s") if session_id is None else check_id(session_id)
    try:
        try:
            async with reading(store, entry) as log:
                return await _create(store, entry, log.events, name, at)
        except Corrupt as error:
            damaged = error.details.get("seq")
            if at is None or not isinstance(damaged, int) or at >= damaged:
                raise
        records = (await store.read(entry.stream, 0, at)).records
        return await _create(store, entry, [decode_record(item) for item in records], name, at)
    except (HeadMoved, VersionMoved) as error:
        raise Conflict(
            f"there is a session {name!r} already",
            code="SESSION_EXISTS",
            hint="pass another id for the fork, or none",
            details={"sessionID": name},
        ) from error


async def _create(
    store: Store, entry: SessionEntry, log: Sequence[StampedEvent], name: str, at: int | None
) -> SessionEntry:
    """Create the fork of a log; a caller that has a long log keeps its turn until then."""
    # Of a long log the copy takes a second, in which the event loop has other work.
    copied = partial(_copy, entry.record, log, name, at, store.now())
    return await create_session(store, await host.run_in_thread(copied))


def _copy(
    source: SessionRecord, log: Sequence[StampedEvent], name: str, at: int | None, now: int
) -> NewSession:
    """Return the fork of a log. Raises Refused AT_INVALID."""
    cut = settled_point(log, at)
    log_copy = copy_events(log, cut, _TaskIds())
    forked = events.Forked(source=source.id, at=cut)
    log_copy.append(StampedEvent(len(log_copy) + 1, now, forked))
    names = SessionNames(source.tenant, name, source.agent, source.queue)
    records = [as_record(item.event, item.at) for item in log_copy]
    return NewSession(session_record(names, log_copy, fold(log_copy)), log_copy, records)


class _TaskIds(dict[str, str]):
    """A new task id for each run, the same each time."""

    def __call__(self, task: str) -> str:
        return self.setdefault(task, new_id("task"))
