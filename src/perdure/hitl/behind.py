"""What the doors of this package share: the service behind a runtime, and a session's log."""

from perdure.app import Runtime, is_open, service_of, tenant_of
from perdure.errors import StoreError
from perdure.hitl.state import checked_session
from perdure.runtime.records.entries import SessionEntry, SessionRef, erased_as_not_found
from perdure.runtime.records.log import Log
from perdure.runtime.sessions.service import Service


def service_at(rt: Runtime | None) -> Service:
    """What stands behind a runtime that is open."""
    if rt is None or not is_open(rt):
        raise StoreError("session service not available", hint="open the runtime: async with rt")
    return service_of(rt)


def address_of(rt: Runtime, session_id: str) -> SessionRef:
    """Which session is meant."""
    return SessionRef(tenant_of(rt) or "", checked_session(session_id))


async def log_of(service: Service, known: SessionEntry) -> Log:
    """The whole log of a session."""
    log = Log(service.desk.store, known.stream)
    with erased_as_not_found(known.record.id):
        await log.catch_up()
    return log
