"""Submission of results to the sessions that wait for them, and a report of all that wait."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from perdure.app import Runtime, service_of, tenant_of
from perdure.core.pending import record as pending
from perdure.core.pending.commands import Command, SubmitError
from perdure.core.pending.record import PendingRecord
from perdure.errors import Corrupt, NotFound, StoreError
from perdure.pending.access import Calls, call_json, session_entry, settle
from perdure.pending.records import submit_command
from perdure.runtime.records.entries import SessionRef
from perdure.views.sessions import Result


class SessionResumer:
    """Submits results to sessions, and drives these on in this process."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt

    async def submit_result(
        self, pending_id: str, result: str | Mapping[str, Any]
    ) -> dict[str, Any]:
        """Record a result, and drive its session here if the agent is known and it is free.

        Returns `{success, sessionID, duplicate}` without waiting for the drive.
        """
        return await self._submit(pending_id, submit_command(result))

    async def submit_error(self, pending_id: str, error: str) -> dict[str, Any]:
        """Record that a call has failed; otherwise like `submit_result`."""
        return await self._submit(pending_id, SubmitError(error))

    async def resume_with_error(self, call: str | Mapping[str, Any], error: str) -> dict[str, Any]:
        """Give a call this error unless it is settled, for example expired; then drive its session.

        `call` is a record or its id. Returns the same as `submit_error`.
        """
        pending_id = call if isinstance(call, str) else call["id"]
        record = await service_of(self._rt).calls.get(pending_id, tenant_of(self._rt))
        if record.is_open:
            return await self.submit_error(pending_id, error)
        await self._drive(record)
        return {"success": True, "sessionID": record.session_id, "duplicate": True}

    async def _submit(self, pending_id: str, command: Command) -> dict[str, Any]:
        outcome = await settle(self._rt, pending_id, command)
        record = outcome.record
        await self._drive(record)
        return {"success": True, "sessionID": record.session_id, "duplicate": outcome.duplicate}

    async def _drive(self, record: PendingRecord) -> None:
        service = service_of(self._rt)
        with suppress(NotFound, StoreError):  # the result is recorded, and the session is due
            entry = await service.get(SessionRef(record.tenant, record.session_id))
            await service.runs.start(entry)

    async def find_waiting_sessions(self) -> Calls:
        """Return every open call, with the session that waits for it."""
        records = service_of(self._rt).calls.list(tenant_of(self._rt))
        return [call_json(self._rt, record) async for record in records]

    async def resume(self, session: str | Mapping[str, Any]) -> Result[Any]:
        """Drive a session, or that of a pending call, here until it parks."""
        if isinstance(session, str):
            return await self._rt.session(session).run()
        return await self._rt.tenant(session["tenant"]).session(session["sessionID"]).run()

    async def can_shutdown(self, session_id: str) -> bool:
        """Report whether a shutdown interrupts nothing: the session is idle, or only waits."""
        service = service_of(self._rt)
        snapshot = await service.snapshot(await session_entry(self._rt, session_id))
        waiting = snapshot.log_state.open_calls
        is_idle = snapshot.state in ("completed", "failed", "cancelled", "waiting")
        return is_idle or (bool(waiting) and all(call.is_pending for call in waiting))

    async def get_waiting_status(self, session_id: str) -> dict[str, Any]:
        """Return `{waiting: True, pendingCalls}` or `{waiting: False}`, as the session does.

        Each call has id, tool, createdAt and perhaps externalRef. A call that was recorded for the
        session and that its model did not request is not one that the session waits for.
        """
        entry = await session_entry(self._rt, session_id)
        service = service_of(self._rt)
        state = (await service.snapshot(entry)).log_state
        ids = state.pending_ids
        records = [r for r in await service.calls.of_session(entry) if r.id in ids]
        in_order = sorted(records, key=lambda record: (record.time.created, record.part_id))
        calls = [_waiting_json(record) for record in in_order]
        return {"waiting": True, "pendingCalls": calls} if calls else {"waiting": False}


def _waiting_json(record: PendingRecord) -> dict[str, Any]:
    data = {"id": record.id, "tool": record.tool, "createdAt": record.time.created}
    return data if record.external_ref is None else {**data, "externalRef": record.external_ref}


async def check_expired_calls(rt: Runtime) -> Calls:
    """Expire every overdue call, as a worker does each second; return those that this expired.

    Their sessions are due, and the next worker or `SessionResumer.resume` continues them.
    """
    expired = await service_of(rt).calls.expire_due()
    return [call_json(rt, record) for record in expired if tenant_of(rt) in (None, record.tenant)]


async def recover_pending_sessions(rt: Runtime) -> dict[str, Any]:
    """Report all sessions that wait: `{recovered, expired, errors, cleanedUp}`.

    Overdue calls are expired, calls that a stopped process had marked as started are waiting again,
    and the entries of calls that were settled long ago are removed.
    Nothing has to be repaired: a session that can continue is due, and the next worker claims it.
    """
    service = service_of(rt)
    expired = await service.calls.expire_due()
    await service.calls.reset_stale()
    recovered: dict[tuple[str, str], dict[str, Any]] = {}
    errors: Calls = []
    async for entry in service.calls.entries():
        try:
            record = pending.decode(entry.data)
        except Corrupt as error:
            errors.append({"pendingID": entry.key, "error": error.message})
            continue
        if tenant_of(rt) in (None, record.tenant):
            _count(recovered, record)
    removed = await service.remove_settled()
    return {
        "recovered": list(recovered.values()),
        "expired": [record.id for record in expired if tenant_of(rt) in (None, record.tenant)],
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
