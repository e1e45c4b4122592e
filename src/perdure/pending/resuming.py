"""Bringing results to the sessions that wait for them, and looking at all that waits."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from perdure.app import Runtime, service_of, tenant_of
from perdure.core.pending import record as pending
from perdure.core.pending.commands import Command, SubmitError
from perdure.core.pending.record import PendingRecord
from perdure.errors import Corrupt, NotFound, StoreError
from perdure.pending.behind import Calls, session_of, settled, shown
from perdure.pending.records import result_of
from perdure.runtime.records.entries import SessionRef, open_calls
from perdure.runtime.records.retention import Retention
from perdure.runtime.views import Result


class SessionResumer:
    """Brings results to sessions, and lets these go on."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt

    async def submit_result(
        self, pending_id: str, result: str | Mapping[str, Any]
    ) -> dict[str, Any]:
        """Record a result; its session goes on here, if the agent is known here and it is free.

        The answer does not wait for that: `{success, sessionID, duplicate}`.
        """
        return await self._submitted(pending_id, result_of(result))

    async def submit_error(self, pending_id: str, error: str) -> dict[str, Any]:
        """Record that a call has failed; else as `submit_result`."""
        return await self._submitted(pending_id, SubmitError(error))

    async def _submitted(self, pending_id: str, command: Command) -> dict[str, Any]:
        outcome = await settled(self._rt, pending_id, command)
        record, service = outcome.record, service_of(self._rt)
        with suppress(NotFound, StoreError):  # it is recorded, and the session is due
            known = await service.desk.outside.known(SessionRef(record.tenant, record.session_id))
            await service.host.start_drive(known)
        return {"success": True, "sessionID": record.session_id, "duplicate": outcome.duplicate}

    async def find_waiting_sessions(self) -> Calls:
        """Every call that is open, with the session that waits for it."""
        found = service_of(self._rt).pending(tenant_of(self._rt))
        return [shown(self._rt, record) async for record in found]

    async def resume(self, session: str | Mapping[str, Any]) -> Result[Any]:
        """Let a session, or that of a pending call, go on here until it rests."""
        if isinstance(session, str):
            return await self._rt.session(session).run()
        return await self._rt.tenant(session["tenant"]).session(session["sessionID"]).run()

    async def can_shutdown(self, session_id: str) -> bool:
        """Whether nothing of the session would be interrupted: it is idle, or only waits."""
        service = service_of(self._rt)
        sight = await service.sight(await session_of(self._rt, session_id))
        waiting = sight.folded.open_calls
        is_idle = sight.state in ("completed", "failed", "cancelled", "waiting")
        return is_idle or (bool(waiting) and all(call.is_outside for call in waiting))

    async def get_waiting_status(self, session_id: str) -> dict[str, Any]:
        """`{waiting: True, pendingCalls}` with id, tool, createdAt, externalRef; or False."""
        store = service_of(self._rt).desk.store
        known = await session_of(self._rt, session_id)
        found = [pending.decode(one.data) async for one in open_calls(store, known.stream)]
        found.sort(key=lambda record: (record.time.created, record.part_id))
        calls = [_waiting(record) for record in found]
        return {"waiting": True, "pendingCalls": calls} if calls else {"waiting": False}


def _waiting(record: PendingRecord) -> dict[str, Any]:
    told = {"id": record.id, "tool": record.tool, "createdAt": record.time.created}
    return told if record.external_ref is None else {**told, "externalRef": record.external_ref}


async def recover_pending_sessions(rt: Runtime) -> dict[str, Any]:
    """Look at all that waits: `{recovered, expired, errors, cleanedUp}`.

    What is overdue is expired, and what was settled long ago is removed. Nothing has to be
    repaired: a session that can go on is due, and the next worker takes it.
    """
    service = service_of(rt)
    expired = await service.desk.settling.expire_due()
    recovered: dict[tuple[str, str], dict[str, Any]] = {}
    errors: Calls = []
    after: str | None = None
    while True:
        page = await service.desk.store.find("pending", state="open", after=after)
        for entry in page.entries:
            try:
                record = pending.decode(entry.data)
            except Corrupt as error:
                errors.append({"pendingID": entry.key, "error": error.message})
                continue
            if tenant_of(rt) in (None, record.tenant):
                _count(recovered, record)
        if page.next is None:
            break
        after = page.next
    removed = await Retention(service.desk.store, service.keep_settled_ms).round()
    return {
        "recovered": list(recovered.values()),
        "expired": [one.id for one in expired if tenant_of(rt) in (None, one.tenant)],
        "errors": errors,
        "cleanedUp": removed,
    }


def _count(recovered: dict[tuple[str, str], dict[str, Any]], record: PendingRecord) -> None:
    session = recovered.setdefault(
        (record.tenant, record.session_id),
        {"sessionID": record.session_id, "pendingCount": 0, "tools": []},
    )
    session["pendingCount"] += 1
    session["tools"].append(record.tool)
