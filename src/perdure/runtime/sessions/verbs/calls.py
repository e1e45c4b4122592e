"""Verbs on pending calls for one caller: listed, decided, settled, counted."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

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
from perdure.core.pending.record import PendingRecord, Verb, pending_not_found
from perdure.core.pending.settlement import Settlement, check_verb
from perdure.core.roles import Permit
from perdure.errors import Conflict, NotAllowed, PerdureError, Refused
from perdure.runtime.records.entries import SessionRef
from perdure.runtime.sessions.pending_pages import PendingFilter
from perdure.runtime.sessions.service import Service
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.runtime.sessions.verbs.caller_views import CallerViews
from perdure.views.base import bind, view_as
from perdure.views.bodies import CallbackBody, DecisionItem, ResultIn
from perdure.views.calls import CallOrID, DecidedCall, PendingCall, call_id
from perdure.views.decisions import (
    RESULTS_EXAMPLE,
    Decisions,
    Outputs,
    checked_calls,
    decision_items,
)
from perdure.views.health import Statistics
from perdure.views.literals import PendingSort

PAGE: Final = 100  # calls that a list of all reads at a time


class CallVerbs:
    """Pending calls as one caller sees and settles them."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self._service = service
        self._caller = caller
        self._views = CallerViews(service, caller)

    def _view(self, record: PendingRecord, damage: PerdureError | None = None) -> PendingCall:
        return bind(self._views.call(record, damage if record.is_open else None), _owner=self)

    async def _session_views(self, records: Sequence[PendingRecord]) -> tuple[PendingCall, ...]:
        """Return views of calls of one session, whose log may be damaged."""
        damage = None
        if any(record.is_open for record in records):
            damage = await self._views.damage(records[0].tenant, records[0].session_id)
        return tuple([self._view(record, damage) for record in records])

    # --- reading ------------------------------------------------------------------------------

    async def get(self, pending_id: str) -> PendingCall:
        """Return one call, open or settled. Raises NotFound."""
        record = await self._service.calls.get(pending_id, self._caller.tenant)
        if not self._caller.may_read(record):
            raise pending_not_found(pending_id)
        return (await self._session_views([record]))[0]

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
        if chosen.session_id is not None and len({record.tenant for record in records}) == 1:
            return await self._session_views(records), following
        return tuple([self._view(record) for record in records]), following

    async def all(
        self, chosen: PendingFilter, sort: PendingSort = "age"
    ) -> AsyncIterator[PendingCall]:
        """Yield the calls that match, in an order. Raises NotFound if there is no session."""
        if chosen.session_id is not None:
            stream = (await self._views.entry(chosen.session_id)).stream
            records = await self._service.calls.of_stream(stream, self.visible(chosen), sort)
            for call in await self._session_views(records):
                yield call
            return
        after: str | None = None
        while True:
            calls, after = await self.page(chosen, after, PAGE, sort)
            for call in calls:
                yield call
            if after is None:
                return

    async def of_session(self, session_id: str) -> tuple[PendingCall, ...]:
        """Return the open calls of a session, in their order. Raises NotFound."""
        entry = await self._views.entry(session_id)
        records = await self._service.calls.of_session(entry)
        ordered = sorted(records, key=lambda record: (record.time.created, record.part_id))
        return await self._session_views(ordered)

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

    async def approve(
        self,
        call: CallOrID,
        *,
        by: str | None = None,
        args: Mapping[str, Any] | None = None,
        note: str | None = None,
        remember: bool | str = False,
        all_tools: bool = False,
    ) -> DecidedCall:
        """Approve exactly the stored call, with `args` merged over its arguments."""
        (author, via), role = self._author(by), self._caller.approver_role(by)
        return await self._settle(call, Approve(author, via, args, note, remember, all_tools, role))

    async def deny(
        self,
        call: CallOrID,
        *,
        by: str | None = None,
        reason: str | None = None,
        remember: bool | str = False,
        all_tools: bool = False,
    ) -> DecidedCall:
        """Deny a call, or decline to answer a question."""
        (author, via), role = self._author(by), self._caller.approver_role(by)
        return await self._settle(call, Deny(author, via, reason, remember, all_tools, role))

    async def respond(self, call: CallOrID, output: Any, *, by: str | None = None) -> DecidedCall:
        """Answer a question, or give an output instead of running the call."""
        role = self._caller.approver_role(by)
        return await self._settle(call, Respond(*self._author(by), output, role))

    async def decide_one(self, item: DecisionItem, by: str | None = None) -> DecidedCall:
        """Make the decision of a form about one call."""
        return await self._settle(item.pending_id, self._caller.command(item, by))

    async def decide(
        self, items: Sequence[DecisionItem], by: str | None = None
    ) -> tuple[DecidedCall, ...]:
        """Decide about several calls in one commit: about all of them, or about none."""
        self._caller.require(Permit.DECIDE)
        commands = self._caller.commands(items, by)
        outcomes = await self._service.calls.settle_all(commands, self._caller.tenant)
        return tuple([self._decided(outcome) for outcome in outcomes])

    def commands(
        self,
        results: Outputs | None,
        decisions: Decisions | None,
        by: str | None,
    ) -> dict[str, Command]:
        """Return the commands of calls that a run settles first, by pending id. Raises Refused."""
        commands: dict[str, Command] = {}
        if results:
            self._caller.require(Permit.SUBMIT)
            outputs = checked_calls("results", results, RESULTS_EXAMPLE).items()
            for call, output in outputs:
                result = ResultIn(output=output)
                commands[call_id(call)] = self._caller.submission(result, by)
        if not decisions:
            return commands
        self._caller.require(Permit.DECIDE)
        decided = self._caller.commands(decision_items(decisions), by)
        if both := sorted(commands.keys() & decided.keys()):
            raise Refused(
                f"{both[0]} is in results and in decisions",
                code="VALUE_INVALID",
                hint="results are for deferred calls, decisions for approvals and questions",
            )
        return commands | decided

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
        self,
        call: CallOrID,
        output: Any,
        *,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> DecidedCall:
        """Submit the result of a deferred call."""
        result = ResultIn(output=output, title=title, metadata=metadata)
        return await self._settle(call, self._caller.submission(result, by))

    async def submit_error(
        self, call: CallOrID, error: str, *, by: str | None = None
    ) -> DecidedCall:
        """Submit the error of a deferred call."""
        command = SubmitError(error, self._caller.actor(by), self._caller.via)
        return await self._settle(call, command)

    async def cancel_call(self, call: CallOrID, *, by: str | None = None) -> DecidedCall:
        """Cancel one call; its model is informed."""
        return await self._settle(call, CancelCall(self._caller.actor(by), self._caller.via))

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

    async def _settle(self, call: CallOrID, command: Command) -> DecidedCall:
        """Settle a call. Raises NotFound, Refused, or Conflict with the winner."""
        pending_id = call_id(call)
        self._caller.require(_permit(command))
        try:
            outcome = await self._service.calls.settle(pending_id, command, self._caller.tenant)
        except Conflict as error:
            self._check_readable(pending_id, error)
            raise
        return self._decided(outcome)

    def _decided(self, outcome: Settlement) -> DecidedCall:
        view = self._views.call(outcome.record)
        return bind(view_as(DecidedCall, view, duplicate=outcome.duplicate), _owner=self)

    def _check_readable(self, pending_id: str, error: Conflict) -> None:
        """Raise NotFound if the call of a conflict is of a kind that the caller may not read."""
        if error.code == "WRONG_KIND" and not self._caller.may(Permit.READ):
            raise pending_not_found(pending_id) from error

    def _author(self, by: str | None) -> tuple[str, str]:
        return self._caller.author(by), self._caller.via


def _permit(command: Command) -> Permit:
    """Return the permit that a command needs."""
    match command:
        case SubmitResult() | SubmitError():
            return Permit.SUBMIT
        case CancelCall():
            return Permit.OPERATE
        case _:
            return Permit.DECIDE
