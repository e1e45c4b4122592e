"""Giving a call its outcome over HTTP: the same steps for results, errors and decisions."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from perdure.core.access import Permit
from perdure.core.pending.commands import Command
from perdure.core.pending.record import PendingRecord
from perdure.core.pending.settlement import Settlement
from perdure.errors import Conflict
from perdure.runtime.records.entries import SessionRef, pending_not_found
from perdure.runtime.views import pending_json
from perdure.serve.http.dependencies import RequestScope
from perdure.serve.http.wait import Wait, rested, seconds_of


async def settled(door: RequestScope, pending_id: str, command: Command) -> Settlement:
    """Give the call its outcome, if it is there for who asks."""
    door.shared.count(door.named(pending_id))
    with unseen_is_not_there(door, pending_id):
        return await door.service.settle(pending_id, command, door.tenant)


@contextmanager
def unseen_is_not_there(door: RequestScope, pending_id: str) -> Iterator[None]:
    """Who may not read a call of another kind is not told that there is one."""
    try:
        yield
    except Conflict as error:
        if error.code == "WRONG_KIND" and not door.may(Permit.READ):
            raise pending_not_found(pending_id) from error
        raise


async def seen(door: RequestScope, pending_id: str) -> PendingRecord:
    """The record, if it is there for who asks. Raises NotFound."""
    record = await door.service.desk.settling.pending(pending_id, door.tenant)
    if not is_seen(door, record):
        raise pending_not_found(pending_id)
    return record


def is_seen(door: RequestScope, record: PendingRecord) -> bool:
    """Whether who asks may read it: a submitter only the calls of deferred tools."""
    return record.kind == "tool" or door.may(Permit.READ)


def shown(door: RequestScope, record: PendingRecord) -> dict[str, Any]:
    """The record as every door shows it."""
    return pending_json(record, door.service.desk.pending_call(record).callback_url)


async def waited(
    door: RequestScope, record: PendingRecord, wait: Wait
) -> tuple[int, dict[str, Any]]:
    """The status of the answer, and the session if it came to rest while the caller waited."""
    seconds = seconds_of(wait)
    if not seconds:
        return 200, {}
    service = door.service
    known = await service.desk.outside.known(SessionRef(record.tenant, record.session_id))
    is_over = await rested(service, known, seconds, door.shared.closing)
    session = (await service.result(known)).to_json() if door.may(Permit.READ) else {}
    return 200 if is_over else 202, {"session": session} if session else {}
