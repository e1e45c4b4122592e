"""Access to an open runtime for the functions of this package."""

from perdure.app import Runtime, is_open, service_of, tenant_of
from perdure.core.execution_states.state import check_session_id
from perdure.errors import StoreError
from perdure.runtime.records.entries import SessionRef
from perdure.runtime.sessions.service import Service


def open_service(rt: Runtime | None) -> Service:
    """Return the service of a runtime. Raises StoreError if the runtime is not open."""
    if rt is None or not is_open(rt):
        raise StoreError("session service not available", hint="open the runtime: async with rt")
    return service_of(rt)


def session_ref(rt: Runtime, session_id: str) -> SessionRef:
    """Return the reference of a session in the runtime's tenant. Raises Refused."""
    return SessionRef(tenant_of(rt) or "", check_session_id(session_id))
