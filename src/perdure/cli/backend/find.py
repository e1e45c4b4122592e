"""Sessions and pending calls by typed id: a complete id, a unique prefix, or @last."""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

from perdure.cli.backend.kinds import Backend
from perdure.cli.backend.shapes import Json
from perdure.core.pending.record import VERBS, Verb
from perdure.core.session.naming import check_id, session_not_found
from perdure.errors import Corrupt, NotFound, Refused
from perdure.views.tasks import AnyTask

LAST: Final = "@last"
_SHOWN: Final = 10
_PURPOSES: Final = {
    Verb.RESPOND: "respond to",
    Verb.RESULT: "submit a result for",
    Verb.ERROR: "submit an error for",
}


async def find_session(backend: Backend, typed_id: str) -> Json:
    """Return the session of a typed id. Raises NotFound, or Refused with AMBIGUOUS_ID."""
    check_id(typed_id)
    if typed_id != LAST:
        with suppress(NotFound, Corrupt):  # a complete id needs no list of all sessions
            return await backend.session(typed_id).get()
    sessions = [session async for session in backend.sessions(is_complete=False)]
    if typed_id == LAST:
        if not sessions:
            raise NotFound(
                "there is no session yet",
                code="SESSION_NOT_FOUND",
                hint="start one: perdure run AGENT PROMPT",
            )
        return max(sessions, key=lambda session: (session["updatedAt"], session["createdAt"]))
    exact = [session for session in sessions if session["sessionID"] == typed_id]
    untenanted = [session for session in exact if not session["tenant"]]
    matches = (
        untenanted
        or exact
        or [session for session in sessions if session["sessionID"].startswith(typed_id)]
    )
    if not matches:
        raise session_not_found(typed_id)
    if len(matches) > 1:
        raise _ambiguous(typed_id, "session", sorted(_name(session) for session in matches))
    return matches[0]


def _name(session: Json) -> str:
    name: str = session["sessionID"]
    return f"{name} (--tenant {session['tenant']})" if session["tenant"] else name


async def find_task(backend: Backend, typed_id: str) -> AnyTask:
    """Return the task of a typed id, of any kind. Raises NotFound, or Refused with AMBIGUOUS_ID."""
    check_id(typed_id, "task id")
    error: NotFound | None = None
    if typed_id != LAST:
        try:  # a complete id needs no list of all tasks
            return await backend.any_tasks.get(typed_id)
        except NotFound as missing:
            error = missing
    if typed_id == LAST:
        matches = list((await backend.any_tasks.list({"limit": 1})).tasks)
    else:
        matches = [task async for task in _tasks(backend) if task.id.startswith(typed_id)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise _ambiguous(typed_id, "task", sorted(_task_name(task) for task in matches))
    raise error or NotFound(
        "there is no task yet", code="TASK_NOT_FOUND", hint="perdure tasks list"
    )


def _task_name(task: AnyTask) -> str:
    return f"{task.id} (--tenant {task.tenant})" if task.tenant else task.id


async def _tasks(backend: Backend, page: int = 500) -> AsyncIterator[AnyTask]:
    """Yield the tasks of every kind, newest first."""
    offset = 0
    while tasks := (await backend.any_tasks.list({"limit": page, "offset": offset})).tasks:
        for task in tasks:
            yield task
        offset += len(tasks)


async def find_pending(
    backend: Backend, typed_id: str, verb: Verb | None = None, recent: str | None = None
) -> Json:
    """Return the pending call of a typed id. Raises NotFound, or Refused with AMBIGUOUS_ID.

    `@last` is the newest open call of the session `recent`; without it, of the only session that
    has one; or else the newest settled call. With a verb, only calls that accept it count.
    """
    check_id(typed_id, "pending id")
    if typed_id == LAST:
        return await _last_pending(backend, verb, recent)
    try:
        return await backend.pending_call(typed_id)
    except NotFound as error:
        matches = [
            call async for call in backend.pending(None, "all") if call["id"].startswith(typed_id)
        ]
        if not matches:
            raise error from None
    if len(matches) > 1:
        names = sorted(f"{call['id']} ({call['tool']}, {call['status']})" for call in matches)
        raise _ambiguous(typed_id, "pending call", names)
    return matches[0]


async def _last_pending(backend: Backend, verb: Verb | None, recent: str | None) -> Json:
    for status in (None, "all"):
        calls = [
            call
            async for call in backend.pending(None, status)
            if verb is None or verb in VERBS.get(call["kind"], ())
        ]
        calls.sort(key=lambda call: _recency(call, verb))
        mine = [call for call in calls if call["sessionID"] == recent]
        if mine:
            return mine[-1]
        is_open = status is None
        if calls and is_open and (recent or len({call["sessionID"] for call in calls}) > 1):
            raise _ambiguous_last(calls, recent)
        if calls:
            return calls[-1]
    purpose = "" if verb is None else f" to {_PURPOSES.get(verb, verb)}"
    raise NotFound(
        f"there is no pending call{purpose}", code="PENDING_NOT_FOUND", hint="perdure pending list"
    )


def _recency(call: Json, verb: Verb | None) -> tuple[bool, int, str]:
    # `respond` also settles approvals, but usually answers a question.
    is_meant = verb is Verb.RESPOND and call["kind"] == "question"
    return is_meant, call["time"]["created"], call["partID"]


def _ambiguous_last(calls: Sequence[Json], recent: str | None) -> Refused:
    """Return the error for an @last that could mean calls of several sessions."""
    count = len({call["sessionID"] for call in calls})
    reason = (
        f"session {recent}, which this terminal used last, has no such open call"
        if recent
        else f"{count} sessions have open calls"
    )
    shown = [f"{call['id']} ({call['tool']}, session {call['sessionID']})" for call in calls]
    newest = shown[: -_SHOWN - 1 : -1]
    return Refused(
        f"@last is not clear: {reason}: {', '.join(newest)}" + (", …" * (len(shown) > _SHOWN)),
        code="AMBIGUOUS_LAST",
        hint="type the id of a call: perdure pending list",
        details={"candidates": [call["id"] for call in calls[: -_SHOWN - 1 : -1]]},
    )


def _ambiguous(typed_id: str, noun: str, names: Sequence[str]) -> Refused:
    candidates = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    return Refused(
        f"{typed_id!r} matches {len(names)} {noun}s: {candidates}",
        code="AMBIGUOUS_ID",
        hint="type more of the id",
        details={"candidates": list(names[:_SHOWN])},
    )
