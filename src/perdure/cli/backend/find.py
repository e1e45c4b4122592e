"""From what people type (an id, the beginning of one, @last) to the thing itself."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from perdure.cli.backend.base import Backend, Json
from perdure.core.pending.record import VERBS, Verb
from perdure.core.session.naming import check_id
from perdure.errors import Corrupt, NotFound, Refused
from perdure.runtime.records.entries import session_not_found

LAST: Final = "@last"
_SHOWN: Final = 10


async def session(backend: Backend, given: str) -> Json:
    """The session that is meant. NotFound, or Refused AMBIGUOUS_ID with the candidates."""
    check_id(given)
    if given != LAST:
        with suppress(NotFound, Corrupt):  # whoever types it whole need not wait for the list
            return await backend.session(given).get()
    seen = [one async for one in backend.sessions(whole=False)]
    if given == LAST:
        if not seen:
            raise NotFound("there is no session yet", code="SESSION_NOT_FOUND")
        return max(seen, key=lambda one: (one["updatedAt"], one["createdAt"]))
    exact = [one for one in seen if one["sessionID"] == given]
    own = [one for one in exact if not one["tenant"]]
    found = own or exact or [one for one in seen if one["sessionID"].startswith(given)]
    if not found:
        raise session_not_found(given)
    if len(found) > 1:
        raise _ambiguous(given, "session", sorted(_name(one) for one in found))
    return found[0]


def _name(found: Json) -> str:
    name: str = found["sessionID"]
    return f"{name} (--tenant {found['tenant']})" if found["tenant"] else name


async def pending(backend: Backend, given: str, verb: Verb | None = None) -> Json:
    """The pending call that is meant.

    `@last` is the newest open one (that takes the verb, if there is one), else the newest of all.
    """
    check_id(given, "pending id")
    if given == LAST:
        return await _last_pending(backend, verb)
    try:
        return await backend.pending_call(given)
    except NotFound as error:
        found = [one async for one in backend.pending(None, "all") if one["id"].startswith(given)]
        if not found:
            raise error from None
    if len(found) > 1:
        names = sorted(f"{one['id']} ({one['tool']}, {one['status']})" for one in found)
        raise _ambiguous(given, "pending call", names)
    return found[0]


async def _last_pending(backend: Backend, verb: Verb | None) -> Json:
    for status in (None, "all"):
        found = [
            one
            async for one in backend.pending(None, status)
            if verb is None or verb in VERBS[one["kind"]]
        ]
        if found:  # an answer is first of all for a question
            is_meant = {"question": 1} if verb is Verb.RESPOND else {}
            return max(
                found,
                key=lambda one: (
                    is_meant.get(one["kind"], 0),
                    one["time"]["created"],
                    one["partID"],
                ),
            )
    what = "pending call" if verb is None else f"call to {verb}"
    raise NotFound(f"there is no {what}", code="PENDING_NOT_FOUND", hint="perdure pending list")


def _ambiguous(given: str, what: str, names: Sequence[str]) -> Refused:
    listed = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    return Refused(
        f"{given!r} could be {len(names)} {what}s: {listed}",
        code="AMBIGUOUS_ID",
        hint="type more of the id",
        details={"candidates": list(names[:_SHOWN])},
    )
