"""A copy of a session up to a settled point, with a life of its own."""

from holdfast.core.log import events
from holdfast.core.log.events import Stamped
from holdfast.core.session.naming import check_id
from holdfast.core.session.state import fold
from holdfast.core.transfer.forks import copied, settled_point
from holdfast.errors import Conflict
from holdfast.runtime.entries import Known, still_there
from holdfast.runtime.ids import new_id
from holdfast.runtime.log import Log, as_record
from holdfast.runtime.making import Making, Names, listed, make
from holdfast.store.base import HeadMoved, Store, VersionMoved


async def fork(
    store: Store, known: Known, *, at: int | None = None, session_id: str | None = None
) -> Known:
    """Copy it up to the last point, not after `at`, where every call had its result.

    One commit: there is a whole fork or none. Nothing of it runs by itself; the original is only
    read. Raises Refused AT_INVALID, Conflict SESSION_EXISTS.
    """
    source = known.record
    name = new_id("s") if session_id is None else check_id(session_id)
    log = Log(store, known.stream)
    with still_there(source.id):
        await log.catch_up()
    cut = settled_point(log.events, at)
    whole = copied(log.events, cut, _Names())
    whole.append(Stamped(len(whole) + 1, store.now(), events.Forked(source=source.id, at=cut)))
    names = Names(source.tenant, name, source.agent, source.queue)
    record = listed(names, whole, fold(whole))
    records = [as_record(one.event, one.at) for one in whole]
    try:
        return await make(store, Making(record, whole, records))
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
