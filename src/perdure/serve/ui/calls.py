"""Pending calls as pages show them: the question, its arguments, its age and its outcome."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, get_args

from perdure.core.pending.record import APPROVER_KINDS
from perdure.runtime.diagnosis.calls import question_text
from perdure.runtime.diagnosis.outcomes import Outcome, call_outcome
from perdure.serve.ui.view import PageView
from perdure.views.calls import PendingCall
from perdure.views.findings import Finding
from perdure.views.literals import DecisionKind

PAUSED: Final = "Task paused - waiting for your input"
PAUSED_FOR_OTHERS: Final = "Task paused - waiting for others"
_DECISIONS: Final = frozenset(get_args(DecisionKind))
_CONTINUING: Final = _DECISIONS - {"deny"}  # who has voted can still deny, and is not waited for
SOON_MS: Final = 15 * 60 * 1000  # a deadline that is closer is shown in red


@dataclass(frozen=True, slots=True)
class CallView:
    """A pending call for a template."""

    record: PendingCall
    url: str
    session_url: str
    now: int
    person: str
    words: str = ""
    thinking: str = ""

    @property
    def title(self) -> str:
        """The question that a person answers."""
        if self.record.kind == "question":
            question = self.record.prompt or str(self.record.args.get("question", ""))
            return " ".join(question.split()) or "A question"
        if self.record.kind == "tool":
            return f"The result of {self.record.tool}"
        return question_text(self.record.tool, self.record.prompt)

    @property
    def is_for_people(self) -> bool:
        """True if a person decides it."""
        return self.record.kind in APPROVER_KINDS

    @property
    def outcome(self) -> Outcome | None:
        """Its settlement in words; None while it is open."""
        return call_outcome(self.record)

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that say why it does not continue."""
        return tuple(item for item in self.record.findings if item.severity in ("warning", "error"))

    @property
    def may_decide(self) -> bool:
        """True if this person may decide about it in any way."""
        return not _DECISIONS.isdisjoint(self.record.can)

    @property
    def approvals(self) -> str:
        """The approvals so far, if it needs several: `1 of 2 approvals: ben “looks right”`."""
        call, votes = self.record, self.record.votes
        if call.min_approvals < 2:
            return ""
        names = ", ".join(f"{vote.by} “{vote.note}”" if vote.note else vote.by for vote in votes)
        counts = f"{len(votes)} of {call.min_approvals} approvals"
        return f"{counts}: {names}" if names else counts

    @property
    def refusal(self) -> str:
        """The reason why this person may not approve an open call; empty if they may."""
        call = self.record
        if not call.is_open or not self.is_for_people or is_input_missing([call]):
            return ""
        if any(vote.by == self.person for vote in call.votes):
            missing = call.missing_approvals
            more = "one more is" if missing == 1 else f"{missing} more are"
            return f"Your approval is recorded; {more} needed."
        if call.not_by_starter and self.person in call.started_by:
            return "You started this run, so another person must approve it."
        if call.approvers:
            return f"Its approvers are {', '.join(call.approvers)}."
        return "You may look, but not decide. An approver must."

    @property
    def is_soon(self) -> bool:
        """True if it expires within minutes."""
        deadline = self.record.expires_at_ms
        return deadline is not None and deadline - self.now < SOON_MS

    @property
    def is_plain_question(self) -> bool:
        """True if any text answers it."""
        has_shape = self.record.choices or self.record.schema or self.record.budget
        return self.record.kind == "question" and not has_shape


def is_input_missing(calls: Iterable[PendingCall]) -> bool:
    """Return whether any of the calls waits for a decision that the caller may make."""
    return any(not _CONTINUING.isdisjoint(call.can) for call in calls)


def paused_text(calls: Iterable[PendingCall]) -> str:
    """Return the sentence about a task that waits for these calls, in words of the caller."""
    return PAUSED if is_input_missing(calls) else PAUSED_FOR_OTHERS


def view_call(view: PageView, call: PendingCall, words: tuple[str, str] = ("", "")) -> CallView:
    """Return a call for a template."""
    return CallView(
        call,
        view.url("pending", call.id),
        view.session_url(call.session_id, call.tenant),
        view.scope.service.now(),
        view.person,
        *words,
    )
