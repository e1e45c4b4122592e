"""Requests for a summary by a caller: checked, and recorded for the driver."""

from contextlib import suppress

from perdure.core.conversation import compaction
from perdure.core.conversation.compaction import CompactionPolicy
from perdure.core.driver.verdicts import NOTHING_TO_COMPACT
from perdure.core.log.events import CompactionRequested
from perdure.core.session.state import State
from perdure.errors import Conflict, ModelError, PerdureError, Refused
from perdure.runtime.records.content import check_text
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.sessions.service import Service
from perdure.store.base import HeadMoved


async def request_summary(
    service: Service, entry: SessionEntry, request: CompactionRequested
) -> None:
    """Record a request for a summary and wake the session, so that its driver creates one.

    Raises Conflict while a run or a call is open, or if there is nothing to summarize.
    """
    _check_request(request)
    agent = service.agents.find(entry.record.agent)
    policy = (None if agent is None else agent.compaction) or CompactionPolicy()
    while True:
        log = await service.log(entry)
        _check_settled(entry.record.id, log.state)
        if compaction.requested_cut(log.events, policy, request, log.state.head) is None:
            raise Conflict(
                f"session {entry.record.id!r}: {NOTHING_TO_COMPACT.error}",
                code=NOTHING_TO_COMPACT.code,
                hint="its turns are summarized already, or are kept: pass a smaller keep",
            )
        with suppress(HeadMoved):
            return await service.inbox.request_summary(entry, request, log.state.head)


def summary_error(state: State) -> PerdureError | None:
    """Return the error of the last request for a summary; None if it succeeded, or is open."""
    failure = None if state.compaction is None else state.compaction.error
    if failure is None:
        return None
    return ModelError(failure.error, code=failure.code, hint=failure.hint)


def _check_request(request: CompactionRequested) -> None:
    for name in ("instructions", "by"):
        text = getattr(request, name)
        if text is not None:
            check_text(name, text)
    keep = request.keep
    if keep is not None and (type(keep) is not int or keep < 0):
        raise Refused(
            f"keep must be a number of turns, not {keep!r}",
            code="VALUE_INVALID",
            hint="0 keeps none of the last turns",
        )


def _check_settled(name: str, state: State) -> None:
    open_calls, run = state.open_calls, state.run
    if state.status == "waiting":
        count = len(open_calls) or 1  # the run itself may wait, for a higher budget
        calls = "1 call" if count == 1 else f"{count} calls"
        raise Conflict(
            f"session {name!r} waits for {calls}: it can be summarized once they are settled",
            code="SESSION_WAITING",
            hint="settle or cancel them: perdure pending list",
        )
    if open_calls or (run is not None and run.end is None):
        raise Conflict(
            f"session {name!r} is {state.status}: it can be summarized once its run is over",
            code="SESSION_RUNNING",
            hint=f"perdure sessions show {name}",
        )
    if state.is_summary_due:
        raise Conflict(
            f"session {name!r} is being summarized already",
            code="COMPACTING",
            hint=f"perdure sessions show {name}",
        )
