"""Draft of one commit of a driver, and its builder."""

from collections.abc import Callable
from typing import assert_never

from msgspec import Struct, field

from perdure.core.driver.verdicts import Defer, Reject, RequireApproval, Start, Verdict, Wait
from perdure.core.log import events
from perdure.core.log.events import Content
from perdure.core.pending.record import (
    APPROVER_KINDS,
    ENDS,
    PendingRecord,
    PendingTime,
    Verb,
    moved,
    pending_event,
)
from perdure.core.pending.settlement import CANCELLED
from perdure.core.session.calls import Call
from perdure.core.session.state import State
from perdure.views.literals import CallKind

RecordChange = Callable[[PendingRecord], PendingRecord]


class SessionScope(Struct, frozen=True):
    """The driven session with the settings that its drafts need, and the driver's epoch."""

    session_id: str
    tenant: str
    agent: str
    epoch: int
    on_expire: str = "fail"
    grace: int = 0  # ms before `cancel` acts
    hooks: tuple[str, ...] = ()
    is_blocking: bool = False  # the driver waits in place for approvers
    ancestry: tuple[str, ...] = ()  # session ids from the root to the parent


class Draft(Struct):
    """The facts of one commit, its new pending records, and changes to existing ones."""

    facts: list[events.Event] = field(default_factory=list)
    new_records: list[PendingRecord] = field(default_factory=list)
    record_changes: dict[str, RecordChange] = field(default_factory=dict)
    settled_changes: dict[str, RecordChange] = field(default_factory=dict)  # of settled records
    taken_mail: list[str] = field(default_factory=list)  # ids of the mail that it delivers
    at: int = 0  # the instant that its records and facts share; 0: the instant of the commit

    def extend(self, other: "Draft") -> None:
        """Add another draft, so that one commit writes both."""
        self.facts += other.facts
        self.new_records += other.new_records
        self.record_changes |= other.record_changes
        self.settled_changes |= other.settled_changes
        self.taken_mail += other.taken_mail


class DraftBuilder(Struct, frozen=True):
    """Builder of a draft, for one run at one instant."""

    task: str
    now: int
    authors: tuple[str, ...] = ()  # of the run
    draft: Draft = field(default_factory=Draft)

    def add(self, event: events.Event) -> None:
        """Add a fact."""
        self.draft.facts.append(event)

    def add_result(
        self,
        call: Call,
        content: Content,
        *,
        is_error: bool = False,
        interrupted: bool = False,
        mail: tuple[str, ...] = (),
    ) -> None:
        """Add the result of a call, and the mail that it delivers."""
        self.draft.taken_mail += mail
        self.add(
            events.ToolResult(
                tool_call_id=call.id,
                result=content,
                is_error=is_error,
                interrupted=interrupted,
                mail=mail,
                task_id=self.task,
            )
        )

    def add_intent(self, call: Call, effect_id: str, epoch: int) -> None:
        """Add the intent of a call."""
        self.add(
            events.ToolStarted(
                id=call.id,
                effect_id=call.effect_id or effect_id,
                attempt=call.attempt + 1,
                epoch=epoch,
                task_id=self.task,
            )
        )

    def open_pending(
        self,
        call: Call,
        verdict: RequireApproval | Defer | Wait,
        scope: SessionScope,
        reason: str | None = None,
    ) -> None:
        """Add a pending record and its event."""
        record = self._record(call, verdict, scope, reason)
        self.draft.new_records.append(record)
        mail = verdict.mail if isinstance(verdict, Wait) else None
        is_external = isinstance(verdict, Wait) and verdict.kind == "tool"
        self.add(pending_event(record, mail=mail, external=is_external))

    def _record(
        self,
        call: Call,
        verdict: RequireApproval | Defer | Wait,
        scope: SessionScope,
        reason: str | None,
    ) -> PendingRecord:
        kind = verdict.kind if isinstance(verdict, Wait) else _KINDS[type(verdict)]
        message = f"m{call.turn}"
        return PendingRecord(
            id=verdict.pending_id,
            session_id=scope.session_id,
            tenant=scope.tenant,
            agent=scope.agent,
            task_id=self.task,
            message_id=message,
            part_id=f"{message}.{call.index}",
            call_id=call.id,
            effect_id=call.effect_id or verdict.effect_id,
            tool=call.tool,
            input=dict(call.params),
            kind=kind,
            time=PendingTime(created=self.now),
            timeout=verdict.until if isinstance(verdict, Wait) else verdict.expires_at,
            prompt=None if isinstance(verdict, Defer) else verdict.prompt,
            reason=reason,
            on_expire=scope.on_expire if _has_policy(kind, scope) else "fail",
            epoch=scope.epoch if scope.is_blocking and kind in APPROVER_KINDS else None,
            grace=scope.grace if kind in APPROVER_KINDS and scope.on_expire == "cancel" else 0,
            started_by=self.authors if kind in APPROVER_KINDS else (),
            policy=None if isinstance(verdict, Defer) else verdict.policy,
            details=None if isinstance(verdict, Defer) else verdict.details,
            schema=verdict.schema if isinstance(verdict, Wait) else None,
            choices=verdict.choices if isinstance(verdict, Wait) else None,
            ancestry=scope.ancestry,
            redact=call.redact,
            hooks=scope.hooks,
        )

    def settle_pending(
        self, call_id: str, pending_id: str, verb: Verb, error: str | None = None
    ) -> None:
        """Settle a pending record and add its event; a run's own question has no call."""
        status = ENDS[verb]
        self.add(
            events.Settled(pending_id=pending_id, status=status, call_id=call_id, task_id=self.task)
        )
        now = self.now
        self.draft.record_changes[pending_id] = lambda record: moved(record, verb, now, error=error)

    def cancel_pending(self, call: Call) -> None:
        """Cancel the open pending records of a call."""
        for pending_id in (call.approval_id, call.pending_id):
            if pending_id is not None:
                self.settle_pending(call.id, pending_id, Verb.CANCEL, CANCELLED)

    def apply_verdict(self, call: Call, verdict: Verdict, scope: SessionScope) -> None:
        """Add what a verdict on a call requires."""
        match verdict:
            case Reject():
                self.add_result(call, verdict.text, is_error=True)
            case Start():
                self.add_intent(call, verdict.effect_id, scope.epoch)
            case RequireApproval() | Wait():
                self.open_pending(call, verdict, scope)
            case Defer():
                if call.pending_id is None:
                    self.open_pending(call, verdict, scope)
                self.add_intent(call, verdict.effect_id, scope.epoch)
            case _:
                assert_never(verdict)


def _has_policy(kind: CallKind, scope: SessionScope) -> bool:
    """Return True if the agent's policy for expired calls covers a kind.

    A deferred call may be kept open, but never cancels its run: its error goes to the model.
    """
    return kind in APPROVER_KINDS or (kind == "tool" and scope.on_expire == "keep")


_KINDS: dict[type, CallKind] = {RequireApproval: "approval", Defer: "tool"}


def draft_builder(state: State, now: int) -> DraftBuilder:
    """Return the builder of a draft for the current run."""
    run = state.run
    if run is None:
        return DraftBuilder("", now, draft=Draft(at=now))
    return DraftBuilder(run.id, now, run.authors, Draft(at=now))
