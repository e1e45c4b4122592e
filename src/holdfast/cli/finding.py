"""From what people type (an id, the beginning of one, @last) to the thing itself."""

from collections.abc import Sequence
from typing import Final

from holdfast.app import Runtime, service_of
from holdfast.core.index import check_id
from holdfast.core.pending import VERBS, PendingRecord, Verb
from holdfast.errors import NotFound, Refused
from holdfast.runtime.entries import Known, session_not_found

LAST: Final = "@last"
_SHOWN: Final = 10


async def session(runtime: Runtime, given: str) -> Known:
    """The session that is meant. NotFound, or Refused AMBIGUOUS_ID with the candidates."""
    check_id(given)
    seen = [known async for known in service_of(runtime).sessions(runtime_tenant(runtime))]
    if given == LAST:
        if not seen:
            raise NotFound("there is no session yet", code="SESSION_NOT_FOUND")
        return max(seen, key=lambda known: (known.record.updated_at, known.record.created_at))
    exact = [known for known in seen if known.record.id == given]
    own = [known for known in exact if not known.record.tenant]
    found = own or exact or [known for known in seen if known.record.id.startswith(given)]
    if not found:
        raise session_not_found(given)
    if len(found) > 1:
        raise _ambiguous(given, "session", sorted(_name(known) for known in found))
    return found[0]


def _name(known: Known) -> str:
    record = known.record
    return f"{record.id} (--tenant {record.tenant})" if record.tenant else record.id


async def pending(runtime: Runtime, given: str, verb: Verb | None = None) -> PendingRecord:
    """The pending call that is meant.

    `@last` is the newest open one (that takes the verb, if there is one), else the newest of all.
    """
    service = service_of(runtime)
    check_id(given, "pending id")
    tenant = runtime_tenant(runtime)
    if given == LAST:
        return await _last_pending(runtime, verb)
    if await service.desk.store.get("pending", given) is not None:
        return await service.desk.settling.pending(given, tenant)
    found = [
        record
        async for record in service.pending(tenant, status="all")
        if record.id.startswith(given)
    ]
    if not found:
        return await service.desk.settling.pending(given, tenant)  # raises NotFound
    if len(found) > 1:
        names = sorted(f"{one.id} ({one.tool}, {one.status})" for one in found)
        raise _ambiguous(given, "pending call", names)
    return found[0]


async def _last_pending(runtime: Runtime, verb: Verb | None) -> PendingRecord:
    for status in (None, "all"):
        found = [
            one
            async for one in service_of(runtime).pending(runtime_tenant(runtime), status=status)
            if verb is None or verb in VERBS[one.kind]
        ]
        if found:  # an answer is first of all for a question
            is_meant = {"question": 1} if verb is Verb.RESPOND else {}
            return max(
                found, key=lambda one: (is_meant.get(one.kind, 0), one.time.created, one.part_id)
            )
    what = "pending call" if verb is None else f"call to {verb}"
    raise NotFound(f"there is no {what}", code="PENDING_NOT_FOUND", hint="holdfast pending list")


def runtime_tenant(runtime: Runtime) -> str | None:
    """The tenant that the runtime is scoped to; None sees all."""
    return runtime._tenant  # noqa: SLF001


def _ambiguous(given: str, what: str, names: Sequence[str]) -> Refused:
    listed = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    return Refused(
        f"{given!r} could be {len(names)} {what}s: {listed}",
        code="AMBIGUOUS_ID",
        hint="type more of the id",
        details={"candidates": list(names[:_SHOWN])},
    )
