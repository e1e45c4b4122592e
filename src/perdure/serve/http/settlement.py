"""Settlement of pending calls over HTTP: the same steps for results, errors and decisions."""

from typing import Any

from perdure.core.pending.commands import Command
from perdure.core.pending.record import PendingRecord
from perdure.core.pending.settlement import Settlement
from perdure.core.roles import Permit
from perdure.errors import Conflict
from perdure.runtime.records.entries import SessionRef, pending_not_found
from perdure.serve.http.dependencies import RequestScope
from perdure.serve.http.schemas import Wait, wait_seconds


async def settle_call(scope: RequestScope, pending_id: str, command: Command) -> Settlement:
    """Settle a call that the caller may see. Raises NotFound, Conflict, Refused."""
    scope.app_state.count_submission(scope.rate_key(pending_id))
    try:
        return await scope.service.calls.settle(pending_id, command, scope.tenant)
    except Conflict as error:
        if is_hidden(scope, error):
            raise pending_not_found(pending_id) from error
        raise


def is_hidden(scope: RequestScope, error: Conflict) -> bool:
    """Return whether the call of a conflict is of a kind that the caller may not read."""
    return error.code == "WRONG_KIND" and not scope.has_permit(Permit.READ)


async def readable_call(scope: RequestScope, pending_id: str) -> PendingRecord:
    """Return the record if the caller may see it. Raises NotFound."""
    record = await scope.service.calls.get(pending_id, scope.tenant)
    if not may_read(scope, record):
        raise pending_not_found(pending_id)
    return record


def may_read(scope: RequestScope, record: PendingRecord) -> bool:
    """Return whether the caller may read a record; a submitter reads only deferred tool calls."""
    return record.kind == "tool" or scope.has_permit(Permit.READ)


def call_json(scope: RequestScope, record: PendingRecord) -> dict[str, Any]:
    """Return the record as JSON."""
    return scope.service.calls.to_json(record)


async def wait_for_session(
    scope: RequestScope, record: PendingRecord, wait: Wait
) -> tuple[int, dict[str, Any]]:
    """Wait until the session is parked; return the HTTP status and the session's field, if any.

    200 if it is parked or the caller does not wait, 202 if the time is over before.
    """
    seconds = wait_seconds(wait)
    if not seconds:
        return 200, {}
    service = scope.service
    entry = await service.get(SessionRef(record.tenant, record.session_id))
    is_parked = await service.runs.wait_until_parked(entry, seconds, scope.app_state.closing.is_set)
    session = (await service.result(entry)).to_json() if scope.has_permit(Permit.READ) else {}
    return 200 if is_parked else 202, {"session": session} if session else {}
