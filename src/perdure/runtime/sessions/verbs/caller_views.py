"""Sessions and calls as one caller finds and sees them."""

from dataclasses import dataclass
from typing import TypeVar

from msgspec import structs

from perdure.core.pending.record import PendingRecord
from perdure.core.roles import Permit
from perdure.core.session.naming import check_id, session_not_found
from perdure.errors import Corrupt, PerdureError, Refused
from perdure.runtime.diagnosis.calls import for_caller
from perdure.runtime.diagnosis.reasons import stored_reason
from perdure.runtime.diagnosis.sessions import for_reader
from perdure.runtime.records.entries import SessionEntry, SessionRef
from perdure.runtime.sessions.service import Service
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.views.base import bind, bound
from perdure.views.calls import PendingCall
from perdure.views.sessions import Result, SessionSummary

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CallerViews:
    """Sessions that a caller finds, and views of what it sees; made once for a request."""

    service: Service
    caller: Caller

    def ref(self, session_id: str) -> SessionRef:
        """Return the key of a session. Raises NotFound for a text that cannot be an id."""
        try:
            return SessionRef(self.caller.home_tenant, check_id(session_id))
        except Refused as error:
            raise session_not_found(session_id) from error

    async def entry(self, session_id: str) -> SessionEntry:
        """Return the entry of a session. Raises NotFound."""
        return await self.service.get(self.ref(session_id))

    def call(self, record: PendingRecord, damage: PerdureError | None = None) -> PendingCall:
        """Return a call with what the caller may do about it."""
        return self.service.calls.view(record, self.caller.acts, damage)

    async def damage(self, tenant: str, session_id: str) -> PerdureError | None:
        """Return the damage of a session's log of which its entry knows; the log is not read.

        No command to the session is accepted then.
        """
        try:
            entry = await self.service.find(SessionRef(tenant, session_id))
        except Corrupt as error:
            return error
        if entry is None or entry.record.problem != Corrupt.code:
            return None
        return stored_reason(entry.record.problem, entry.record.problem_text)

    def session(self, result: Result[T]) -> Result[T]:
        """Return a session with the steps and acts that the caller may take."""
        if self.caller.principal is None:
            return result
        view = result if self.caller.may(Permit.OPERATE) else for_reader(result)
        if not view.pending:
            return view
        calls = tuple([self._with_acts(call) for call in view.pending])
        return bind(structs.replace(view, pending=calls), **result.__dict__)

    def summary(self, summary: SessionSummary) -> SessionSummary:
        """Return a session of a list with the steps that the caller may take."""
        return summary if self.caller.may(Permit.OPERATE) else for_reader(summary)

    def _with_acts(self, call: PendingCall) -> PendingCall:
        return for_caller(call, self.caller.acts(bound(call, "_record")))
