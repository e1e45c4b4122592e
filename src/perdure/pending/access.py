"""Access to a runtime for the classes of this package, and records as JSON."""

from typing import Any

from perdure.app import Runtime, service_of, tenant_of
from perdure.core.pending.commands import Command
from perdure.core.pending.record import PendingRecord
from perdure.core.pending.settlement import Settlement
from perdure.runtime.records.entries import SessionEntry, SessionRef

Call = dict[str, Any]  # a pending call as JSON
Calls = list[Call]


async def session_entry(rt: Runtime, session_id: str) -> SessionEntry:
    """Return the entry of a session in the runtime's tenant. Raises NotFound."""
    return await service_of(rt).get(SessionRef(tenant_of(rt) or "", session_id))


async def settle(rt: Runtime, pending_id: str, command: Command) -> Settlement:
    """Give a call its outcome."""
    return await service_of(rt).calls.settle(pending_id, command, tenant_of(rt))


def call_json(rt: Runtime, record: PendingRecord) -> Call:
    """Return a record as JSON, with the names of the wire format."""
    return service_of(rt).calls.view(record).to_json()
