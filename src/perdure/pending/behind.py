"""What the doors of this package share: the runtime behind them, and how a record is shown."""

from typing import Any

from perdure.app import Runtime, service_of, tenant_of
from perdure.core.pending.commands import Command
from perdure.core.pending.record import PendingRecord
from perdure.core.pending.settlement import Settlement
from perdure.runtime.records.entries import SessionEntry, SessionRef
from perdure.runtime.views import pending_json

Call = dict[str, Any]  # a pending call as every door shows it
Calls = list[Call]


async def session_of(rt: Runtime, session_id: str) -> SessionEntry:
    """A session. Raises NotFound."""
    return await service_of(rt).desk.outside.known(SessionRef(tenant_of(rt) or "", session_id))


async def settled(rt: Runtime, pending_id: str, command: Command) -> Settlement:
    """Give a call its outcome, as every door does."""
    return await service_of(rt).settle(pending_id, command, tenant_of(rt))


def shown(rt: Runtime, record: PendingRecord) -> Call:
    """A record, spelled as on the wire."""
    url = service_of(rt).desk.callback_url(record.id) if record.kind == "tool" else None
    return pending_json(record, url)
