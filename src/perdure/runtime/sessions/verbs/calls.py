"""Verbs on pending calls for one caller: listed, decided, settled, counted."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from perdure.core.pending.commands import (
    Approve,
    CancelCall,
    Command,
    Deny,
    Respond,
    SubmitError,
    SubmitResult,
)
from perdure.core.pending.progress import ProgressReport
from perdure.core.pending.record import Verb, pending_not_found
from perdure.core.pending.settlement import Settlement, check_verb
from perdure.core.roles import Permit
from perdure.errors import Conflict, NotAllowed
from perdure.runtime.records.entries import SessionRef
from perdure.runtime.sessions.decisions import decision_commands
from perdure.runtime.sessions.pending_pages import PendingFilter, PendingSort
from perdure.runtime.sessions.service import Service
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.runtime.sessions.verbs.caller_views import CallerViews
from perdure.views.bodies import (
    ApproveBody,
    CallbackBody,
    DecisionItem,
    DenyBody,
    RespondBody,
    ResultIn,
)
from perdure.views.calls import PendingCall
from perdure.views.health import Statistics


class SettledCall:
    """A call after a command; `duplicate` says that the same command was accepted before."""

    __slots__ = ("_record", "_views", "duplicate")

    def __init__(self, views: CallerViews, outcome: Settlement) -> None:
        self._views = views
        self._record = outcome.record
        self.duplicate = outcome.duplicate

    @property
    def session_id(self) -> str:
        """The session of the call."""
        return self._record.session_id

    @property
    def tenant(self) -> str:
        """The tenant of its session."""
        return self._record.tenant

    @property
    def call(self) -> PendingCall:
        """The call as the caller sees it."""
        return self._views.call(self._record)


class CallVerbs:
    """Pending calls as one caller sees and settles them."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self._service = service
        self._caller = caller
        self._views = CallerViews(service, caller)

    # --- reading ------------------------------------------------------------------------------

    async def get(self, pending_id: str) -> PendingCall:
        """Return one call, open or settled. Raises NotFound."""
        record = await self._service.calls.get(pending_id, self._caller.tenant)
        if not self._caller.may_read(record):
            raise pending_not_found(pending_id)
        return self._views.call(record)

    async def page(
        self,
        chosen: PendingFilter,
        after: str | None,
        limit: int,
        sort: PendingSort = "age",
        most: int | None = None,
    ) -> tuple[tuple[PendingCall, ...], str | None]:
        """Return up to `limit` calls that match, and the cursor after them if more follow.

        It ends early where about `most` entries were read. Raises ValueError for a bad cursor.
        """
        calls, visible = self._service.calls, self.visible(chosen)
        records, following = await calls.page(visible, after, limit, sort, most)
        return tuple([self._views.call(record) for record in records]), following

    async def all(
        self, status: str | None = None, session_id: str | None = None
    ) -> AsyncIterator[PendingCall]:
        """Yield calls: the open ones, those of a status, or with "all" every one."""
        stream: str | None = None
        if session_id is not None:
            stream = (await self._views.entry(session_id)).stream
        calls = self._service.calls.list(self._caller.tenant, status=status, stream=stream)
        async for record in calls:
            if self._caller.may_read(record):
                yield self._views.call(record)

    async def of_session(self, session_id: str) -> tuple[PendingCall, ...]:
        """Return the open calls of a session, in their order. Raises NotFound."""
        entry = await self._views.entry(session_id)
        records = await self._service.calls.of_session(entry)
        ordered = sorted(records, key=lambda record: (record.time.created, record.part_id))
        return tuple([self._views.call(record) for record in ordered])

    async def count(self, chosen: PendingFilter) -> int:
        """Return the number of all calls that match."""
        return await self._service.calls.count(self.visible(chosen))

    def visible(self, chosen: PendingFilter) -> PendingFilter:
        """Return the filter for the calls that the caller may read."""
        # None: everything, which an index can count.
        may_read = None if self._caller.may(Permit.READ) else self._caller.may_read
        return replace(chosen, tenant=self._caller.tenant, may_read=may_read)

    async def statistics(self, hours: int) -> Statistics:
        """Count the calls of the last hours, and how fast people decided."""
        return await self._service.calls.statistics(hours, self._caller.tenant)

    # --- deciding -----------------------------------------------------------------------------

    async def approve(self, pending_id: str, body: ApproveBody) -> SettledCall:
        """Approve exactly the stored call, with `args` merged over its arguments."""
        (actor, via), role = self._author(body.by), self._caller.approver_role(body.by)
        remember = (body.remember, body.all_tools)
        command = Approve(actor, via, body.args, body.note, *remember, role)
        return await self._settle(pending_id, command)

    async def deny(self, pending_id: str, body: DenyBody) -> SettledCall:
        """Deny a call, or decline to answer a question."""
        (actor, via), role = self._author(body.by), self._caller.approver_role(body.by)
        command = Deny(actor, via, body.reason, body.remember, body.all_tools, role)
        return await self._settle(pending_id, command)

    async def respond(self, pending_id: str, body: RespondBody) -> SettledCall:
        """Answer a question, or give an output instead of running the call."""
        role = self._caller.approver_role(body.by)
        return await self._settle(pending_id, Respond(*self._author(body.by), body.output, role))

    async def decide_one(self, item: DecisionItem, by: str | None = None) -> SettledCall:
        """Make the decision of a form about one call."""
        return await self._settle(item.pending_id, self._caller.command(item, by))

    async def decide(
        self, items: Sequence[DecisionItem], by: str | None = None
    ) -> list[SettledCall]:
        """Decide about several calls in one commit: about all of them, or about none."""
        role = self._caller.approver_role(by)
        commands = decision_commands(items, *self._author(by), role)
        outcomes = await self._service.calls.settle_all(commands, self._caller.tenant)
        return [SettledCall(self._views, outcome) for outcome in outcomes]

    async def check_not_own(self, pending_id: str) -> None:
        """Raise NotAllowed if the caller started the session, or one that launched it.

        A model that launches an agent could otherwise approve what it makes the agent do.
        """
        record = await self._service.calls.get(pending_id, self._caller.tenant)
        authors = set(record.started_by)
        for name in (*record.ancestry, record.session_id):
            authors |= await self._service.authors(SessionRef(record.tenant, name))
        if self._caller.name in authors:
            raise NotAllowed(
                f"{self._caller.name!r} started session {record.session_id!r}, or one above it, "
                "and may not decide about its calls here",
                code="OWN_SESSION",
                hint="a person decides it: perdure pending list",
            )

    # --- submitting ---------------------------------------------------------------------------

    async def submit_result(
        self, pending_id: str, result: ResultIn, by: str | None = None
    ) -> SettledCall:
        """Submit the result of a deferred call."""
        author = (self._caller.actor(by), self._caller.via)
        command = SubmitResult(result.output, result.title, result.metadata, *author)
        return await self._settle(pending_id, command)

    async def submit_error(self, pending_id: str, error: str, by: str | None = None) -> SettledCall:
        """Submit the error of a deferred call."""
        author = (self._caller.actor(by), self._caller.via)
        return await self._settle(pending_id, SubmitError(error, *author))

    async def cancel(self, pending_id: str, by: str | None = None) -> SettledCall:
        """Cancel one call; its model is informed."""
        command = CancelCall(self._caller.actor(by), self._caller.via)
        return await self._settle(pending_id, command)

    async def report_progress(self, pending_id: str, body: CallbackBody) -> str:
        """Record progress unless it is outdated or repeated; return the id of the session.

        Raises NotFound, Conflict for a settled call.
        """
        record = await self._service.calls.get(pending_id, self._caller.tenant)
        try:
            check_verb(record, Verb.RESULT)
        except Conflict as error:
            self._check_readable(pending_id, error)
            raise
        report = ProgressReport(
            percent=body.percent, message=body.message, id=body.id, sequence=body.sequence
        )
        await self._service.calls.report_progress(record, report)
        return record.session_id

    async def _settle(self, pending_id: str, command: Command) -> SettledCall:
        """Settle a call. Raises NotFound, Refused, or Conflict with the winner."""
        try:
            outcome = await self._service.calls.settle(pending_id, command, self._caller.tenant)
        except Conflict as error:
            self._check_readable(pending_id, error)
            raise
        return SettledCall(self._views, outcome)

    def _check_readable(self, pending_id: str, error: Conflict) -> None:
        """Raise NotFound if the call of a conflict is of a kind that the caller may not read."""
        if error.code == "WRONG_KIND" and not self._caller.may(Permit.READ):
            raise pending_not_found(pending_id) from error

    def _author(self, by: str | None) -> tuple[Any, str]:
        """Return actor and channel; a missing actor is refused with the command."""
        return self._caller.actor(by), self._caller.via
