"""Pending calls as pages show them: the question, its arguments, its age and its outcome."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from perdure.core.pending.record import APPROVER_KINDS, PendingRecord
from perdure.core.roles import Permit
from perdure.errors import NotFound
from perdure.runtime.diagnosis.calls import question_text
from perdure.runtime.records.entries import SessionEntry, SessionRef
from perdure.runtime.sessions.command_checks import with_problem
from perdure.runtime.views import Event
from perdure.serve.http.settlement import call_json
from perdure.serve.ui.outcomes import Outcome, call_outcome
from perdure.serve.ui.view import View

SOON_MS: Final = 15 * 60 * 1000  # a deadline that is closer is shown in red
TAIL: Final = 60  # events at the end of a log in which the words of the model are searched


@dataclass(frozen=True, slots=True)
class CallView:
    """A pending call for a template."""

    record: PendingRecord
    json: Mapping[str, Any]
    url: str
    session_url: str
    now: int
    words: str = ""
    thinking: str = ""

    @property
    def id(self) -> str:
        """Its pending id."""
        return self.record.id

    @property
    def title(self) -> str:
        """The question that a person answers."""
        if self.record.kind == "question":
            question = self.record.prompt or str(self.record.input.get("question", ""))
            return " ".join(question.split()) or "A question"
        return question_text(self.record.tool, self.record.prompt)

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Its arguments without secret ones."""
        return self.record.redacted.input

    @property
    def is_for_people(self) -> bool:
        """True if a person decides it."""
        return self.record.kind in APPROVER_KINDS

    @property
    def outcome(self) -> Outcome | None:
        """Its settlement in words; None while it is open."""
        return call_outcome(self.json)

    @property
    def allowed(self) -> Sequence[str]:
        """The kinds of decisions that it accepts."""
        return self.record.allowed_decisions if self.record.is_open else ()

    @property
    def is_soon(self) -> bool:
        """True if it expires within minutes."""
        return self.record.timeout is not None and self.record.timeout - self.now < SOON_MS

    @property
    def is_plain_question(self) -> bool:
        """True if any text answers it."""
        has_shape = self.record.choices or self.record.schema or self.record.budget
        return self.record.kind == "question" and not has_shape


def view_call(view: View, record: PendingRecord, words: tuple[str, str] = ("", "")) -> CallView:
    """Return a call for a template, with the problem that it has with the code of this server."""
    record = with_problem(view.scope.service.agents, record)
    return CallView(
        record,
        call_json(view.scope, record),
        view.url("pending", record.id),
        view.session_url(record.session_id, record.tenant),
        view.scope.service.now(),
        *words,
    )


async def find_session(view: View, record: PendingRecord) -> SessionEntry | None:
    """Return the session of a call; None if it was deleted or this person may not read it."""
    if not view.may(Permit.READ):
        return None
    try:
        return await view.scope.service.get(SessionRef(record.tenant, record.session_id))
    except NotFound:
        return None


async def last_words(view: View, record: PendingRecord) -> tuple[str, str]:
    """Return what the model said and thought when it asked for a call."""
    entry = await find_session(view, record)
    if entry is None:
        return "", ""
    service = view.scope.service
    head = max(entry.record.head, 0)
    events, head = await service.feed.events(entry, max(head - TAIL, 0), 2 * TAIL)
    return _words_of(events, record.message_id)


def _words_of(events: Sequence[Event], message_id: str) -> tuple[str, str]:
    """Return the words of one response: `m3` is the third."""
    turn = message_id.removeprefix("m")
    for event in reversed(events):
        if event.type == "assistant" and str(event.data.get("turn", "")) == turn:
            return str(event.data.get("content") or ""), str(event.data.get("thinking") or "")
    return "", ""
