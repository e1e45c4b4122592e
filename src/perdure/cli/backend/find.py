"""Sessions, tasks and pending calls by typed id: a complete id, a unique prefix, or @last."""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, Final

from perdure.cli.backend.console import Api, Console
from perdure.core.pending.record import VERBS, Verb
from perdure.core.session.naming import check_id, session_not_found
from perdure.errors import Corrupt, NotFound, Refused
from perdure.views.calls import PendingCall
from perdure.views.sessions import Result, SessionSummary
from perdure.views.tasks import AnyTask

LAST: Final = "@last"
_SHOWN: Final = 10
_PURPOSES: Final = {
    Verb.RESPOND: "respond to",
    Verb.RESULT: "submit a result for",
    Verb.ERROR: "submit an error for",
}
FoundSession = Result[Any] | SessionSummary


async def find_session(console: Console, typed_id: str) -> FoundSession:
    """Return the session of a typed id. Raises NotFound, or Refused with AMBIGUOUS_ID."""
    check_id(typed_id)
    if typed_id == LAST:
        async for newest in console.api.summaries():
            return newest
        raise NotFound(
            "there is no session yet",
            code="SESSION_NOT_FOUND",
            hint="start one: perdure run AGENT PROMPT",
        )
    with suppress(NotFound, Corrupt):  # a complete id needs no list of all sessions
        return await console.snapshot(console.api.session(typed_id))
    matches = [
        session
        async for session in console.api.summaries()
        if session.session_id.startswith(typed_id)
    ]
    exact = [session for session in matches if session.session_id == typed_id]
    matches = [session for session in exact if not session.tenant] or exact or matches
    if not matches:
        raise session_not_found(typed_id)
    if len(matches) > 1:
        names = sorted(_name(session.session_id, session.tenant) for session in matches)
        raise _ambiguous(typed_id, "session", names)
    return matches[0]


def _name(name: str, tenant: str) -> str:
    return f"{name} (--tenant {tenant})" if tenant else name


async def find_task(api: Api, typed_id: str) -> AnyTask:
    """Return the task of a typed id, of any kind. Raises NotFound, or Refused with AMBIGUOUS_ID."""
    check_id(typed_id, "task id")
    if typed_id == LAST:
        async for newest in api.tasks():
            return newest
        raise NotFound("there is no task yet", code="TASK_NOT_FOUND", hint="perdure tasks list")
    try:  # a complete id needs no list of all tasks
        return await api.tasks.get(typed_id)
    except NotFound:
        matches = [task async for task in api.tasks() if task.id.startswith(typed_id)]
        if not matches:
            raise
    if len(matches) > 1:
        names = sorted(_name(task.id, task.tenant) for task in matches)
        raise _ambiguous(typed_id, "task", names)
    return matches[0]


async def find_pending(
    api: Api, typed_id: str, verb: Verb | None = None, recent: str | None = None
) -> PendingCall:
    """Return the pending call of a typed id. Raises NotFound, or Refused with AMBIGUOUS_ID.

    `@last` is the newest open call of the session `recent`; without it, of the only session that
    has one; or else the newest settled call. With a verb, only calls that accept it count.
    """
    check_id(typed_id, "pending id")
    if typed_id == LAST:
        return await _last_pending(api, verb, recent)
    try:
        return await api.pending_call(typed_id)
    except NotFound:
        matches = [call async for call in _calls(api, "all") if call.id.startswith(typed_id)]
        if not matches:
            raise
    if len(matches) > 1:
        names = sorted(f"{call.id} ({call.tool}, {call.status})" for call in matches)
        raise _ambiguous(typed_id, "pending call", names)
    return matches[0]


def _calls(api: Api, status: str | None) -> AsyncIterator[PendingCall]:
    return api.pending(status=status)


async def _last_pending(api: Api, verb: Verb | None, recent: str | None) -> PendingCall:
    for status in (None, "all"):
        calls = [
            call
            async for call in _calls(api, status)
            if verb is None or verb in VERBS.get(call.kind, ())
        ]
        calls.sort(key=lambda call: _recency(call, verb))
        mine = [call for call in calls if call.session_id == recent]
        if mine:
            return mine[-1]
        is_open = status is None
        if calls and is_open and (recent or len({call.session_id for call in calls}) > 1):
            raise _ambiguous_last(calls, recent)
        if calls:
            return calls[-1]
    purpose = "" if verb is None else f" to {_PURPOSES.get(verb, verb)}"
    raise NotFound(
        f"there is no pending call{purpose}", code="PENDING_NOT_FOUND", hint="perdure pending list"
    )


def _recency(call: PendingCall, verb: Verb | None) -> tuple[bool, int, str]:
    # `respond` also settles approvals, but usually answers a question.
    is_meant = verb is Verb.RESPOND and call.kind == "question"
    return is_meant, call.time.created, call.part_id


def _ambiguous_last(calls: Sequence[PendingCall], recent: str | None) -> Refused:
    """Return the error for an @last that could mean calls of several sessions."""
    count = len({call.session_id for call in calls})
    reason = (
        f"session {recent}, which this terminal used last, has no such open call"
        if recent
        else f"{count} sessions have open calls"
    )
    shown = [f"{call.id} ({call.tool}, session {call.session_id})" for call in calls]
    newest = shown[: -_SHOWN - 1 : -1]
    return Refused(
        f"@last is not clear: {reason}: {', '.join(newest)}" + (", …" * (len(shown) > _SHOWN)),
        code="AMBIGUOUS_LAST",
        hint="type the id of a call: perdure pending list",
        details={"candidates": [call.id for call in calls[: -_SHOWN - 1 : -1]]},
    )


def _ambiguous(typed_id: str, noun: str, names: Sequence[str]) -> Refused:
    candidates = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    return Refused(
        f"{typed_id!r} matches {len(names)} {noun}s: {candidates}",
        code="AMBIGUOUS_ID",
        hint="type more of the id",
        details={"candidates": list(names[:_SHOWN])},
    )
