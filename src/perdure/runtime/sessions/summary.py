"""A summary that somebody asks for by hand: whether it can be had now, and asking for it."""

from contextlib import suppress

from perdure.core.conversation import compaction
from perdure.core.conversation.compaction import Policy
from perdure.core.log.events import CompactionRequested
from perdure.core.session.state import State
from perdure.errors import Conflict, ModelError, PerdureError, Refused
from perdure.runtime.engine.model_calls import NOTHING
from perdure.runtime.records.content import check_text
from perdure.runtime.records.entries import SessionEntry, erased_as_not_found
from perdure.runtime.records.log import Log
from perdure.runtime.sessions.service import Service
from perdure.store.base import HeadMoved


async def ask_for_summary(
    service: Service, known: SessionEntry, wanted: CompactionRequested
) -> None:
    """Record that somebody wants a summary, and wake the session: who drives it makes one.

    Raises Conflict while a run or a call is under way, or if there is nothing to summarise.
    """
    _check(wanted)
    agent = service.agents.find(known.record.agent)
    policy = (None if agent is None else agent.compaction) or Policy()
    while True:
        log = Log(service.desk.store, known.stream)
        with erased_as_not_found(known.record.id):
            await log.catch_up()
        _check_settled(known.record.id, log.state)
        if compaction.by_hand(log.events, policy, wanted, log.state.head) is None:
            raise Conflict(
                f"session {known.record.id!r}: {NOTHING.error}",
                code=NOTHING.code,
                hint="its turns are in a summary already, or are kept: name fewer to keep",
            )
        with suppress(HeadMoved):
            return await service.desk.outside.ask_for_summary(known, wanted, log.state.head)


def summary_error(state: State) -> PerdureError | None:
    """Why the summary that was asked for last is not to be had; None: it is there, or comes."""
    failed = None if state.compaction is None else state.compaction.error
    return None if failed is None else ModelError(failed.error, code=failed.code, hint=failed.hint)


def _check(wanted: CompactionRequested) -> None:
    for name in ("instructions", "by"):
        text = getattr(wanted, name)
        if text is not None:
            check_text(name, text)
    keep = wanted.keep
    if keep is not None and (type(keep) is not int or keep < 0):
        raise Refused(f"keep must be a number of turns, not {keep!r}", code="VALUE_INVALID")


def _check_settled(name: str, state: State) -> None:
    waiting, run = state.open_calls, state.run
    if state.status == "waiting":
        calls = "1 call" if len(waiting) == 1 else f"{len(waiting)} calls"
        raise Conflict(
            f"session {name!r} waits for {calls}: it can be summarised once they are settled",
            code="SESSION_WAITING",
            hint="settle or cancel them: perdure pending list",
        )
    if waiting or (run is not None and run.end is None):
        raise Conflict(
            f"session {name!r} is {state.status}: it can be summarised once its run is over",
            code="SESSION_RUNNING",
            hint=f"perdure sessions show {name}",
        )
    if state.needs_summary:
        raise Conflict(
            f"session {name!r} is being summarised already",
            code="COMPACTING",
            hint=f"perdure sessions show {name}",
        )
