"""SX.6: the sentences that people and programs were promised, word for word."""

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from perdure import Result, hitl
from perdure.config.agents import HitlConfig
from perdure.config.blocks import problems_in
from perdure.config.links import wait_mode
from perdure.config.problems import InvalidValue
from perdure.config.reader import Scalar
from perdure.core.pending import settlement as decide
from perdure.core.pending.commands import Approve, CancelCall, Command, Deny, SubmitResult
from perdure.core.pending.outcome_texts import denial_text
from perdure.core.pending.record import PendingRecord, PendingTime
from perdure.core.session import naming as index
from perdure.core.session.permissions import NOT_TRACKED
from perdure.core.session.todos import check_todos
from perdure.errors import Conflict, Refused
from perdure.sessions import (
    format_sanitization_issues,
    sanitize_recovered_messages,
    validate_message_structure,
)
from perdure.views.literals import PendingStatus
from perdure.views.sessions import IdleStatus

RECORD = PendingRecord(
    id="p_1",
    session_id="s_1",
    agent="shop",
    task_id="task_1",
    message_id="m1",
    part_id="m1.0",
    call_id="c_1",
    effect_id="e_1",
    tool="refund",
    input={},
    kind="approval",
    time=PendingTime(created=1),
)
CALL = PendingRecord(
    **{**{f: getattr(RECORD, f) for f in RECORD.__struct_fields__}, "kind": "tool"}
)

USE = {"type": "tool_use", "id": "call_abc123", "name": "read", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "call_abc123", "content": "ok"}
CALLED = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [USE]}]
SANITIZED = (
    "Sanitized 1 issue(s): [incomplete_tool_call] Removed 1 incomplete tool call(s): call_abc123"
)


def error_of_an_expired_call() -> str:
    return decide.settle(_due(CALL), SubmitResult("x"), 5).record.error or ""


def _due(record: PendingRecord) -> PendingRecord:
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    return PendingRecord(**{**fields, "timeout": 5})


def error_of_a_cancelled_call() -> str:
    return decide.settle(CALL, CancelCall(), 5).record.error or ""


def refusal_of_a_second_result() -> str:
    settled = decide.settle(CALL, SubmitResult("x", by="ci"), 5).record
    return _refusal(settled, SubmitResult("y"))


def refusal_of_a_second_decision() -> str:
    settled = decide.settle(RECORD, Approve("ana", "ui"), 5).record
    return _refusal(settled, Deny("bob", "ui"))


def refusal_of_a_wrong_verb() -> str:
    return _refusal(CALL, Approve("ana", "ui"))


def _refusal(record: PendingRecord, command: Command) -> str:
    with pytest.raises(Conflict) as caught:
        decide.settle(record, command, 6)
    return caught.value.message


def issue_of_an_incomplete_call() -> str:
    return format_sanitization_issues(sanitize_recovered_messages(CALLED).issues)


def errors_of(messages: list[Any]) -> list[str]:
    return validate_message_structure(messages).errors


def refusal_of_an_id() -> str:
    with pytest.raises(Refused) as caught:
        index.check_id("")
    return caught.value.message


def refusal_of_todos() -> str:
    todo = {"status": "in_progress", "activeForm": "Working"}
    with pytest.raises(Refused) as caught:
        check_todos([{"content": one, **todo} for one in "ab"])
    return caught.value.message


def refusal_of_a_lost_call() -> str:
    lost = PendingRecord(
        **{
            **{f: getattr(RECORD, f) for f in RECORD.__struct_fields__},
            "status": "failed",
            "error": decide.LOST,
        }
    )
    return _refusal(lost, Approve("ana", "ui"))


def refusal_of(mode: str, store: str | None, *, durable: bool = False) -> str:
    """What is said of a mode at load."""
    with pytest.raises(InvalidValue) as caught:
        wait_mode(mode, store, is_durable=durable)  # type: ignore[arg-type]
    return caught.value.text


def refusal_of_a_mode() -> str:
    with pytest.raises(ValidationError) as caught:
        HitlConfig.model_validate({"mode": Scalar("sync", "sync")})
    (problem,) = problems_in(caught.value, {(): 1})
    return problem.text


def refusal_without_a_session() -> str:
    with pytest.raises(Refused) as caught:
        hitl.capture_execution_state("task", "", "", hitl.ReasoningStateSnapshot())
    return caught.value.message


def text_of_a_pause() -> str:
    result: Result[Any] = Result(
        session_id="s",
        agent="a",
        state="waiting",
        status=IdleStatus(),
        created_at_ms=1,
        updated_at_ms=1,
    )
    return hitl.InputRequired.of_run(result).message


# checklist id, who says it, the sentence
TEXTS = [
    (
        "S4.40 no store",
        lambda: refusal_of("async", None),
        "async HITL requires session_store to be configured",
    ),
    (
        "S4.48 memory",
        lambda: refusal_of("async", "mem"),
        "async HITL requires a durable session_store ('mem' is memory)",
    ),
    (
        "S4.40 mode",
        refusal_of_a_mode,
        "invalid hitl.mode: sync (must be 'auto', 'blocking', or 'async')",
    ),
    ("S4.5 session", refusal_without_a_session, "session ID required for async HITL"),
    (
        "S4.5 task",
        lambda: NOT_TRACKED,
        "Tool requires approval but task tracking not enabled, denying",
    ),
    ("S4.2", text_of_a_pause, "input required - task paused for user approval"),
    (
        "S4.46",
        refusal_of_a_lost_call,
        ("refund (p_1): lost at restart: the process that waited in place for a decision is gone"),
    ),
    ("S0.62", error_of_an_expired_call, "Tool execution timed out"),
    ("S0.40", error_of_a_cancelled_call, "Cancelled by user"),
    (
        "S0.32",
        refusal_of_a_second_result,
        "Not waiting: refund (p_1) was completed by ci",
    ),
    (
        "S4.29",
        refusal_of_a_second_decision,
        "already answered: refund (p_1) was approved by ana",
    ),
    (
        "S4.26",
        lambda: denial_text("approval", "refund", None, "too much"),
        (
            "The user denied this call to refund; it was not run. Reason: too much. "
            "Do not proceed as if it had run, and do not invent its result."
        ),
    ),
    (
        "WRONG_KIND",
        refusal_of_a_wrong_verb,
        "a call of kind 'tool' cannot take 'approve'; it takes cancel, error, result",
    ),
    ("S2.61", refusal_of_todos, "Invalid todo update: only one todo can be in_progress"),
    ("ID_INVALID", refusal_of_an_id, "'' cannot be a session id"),
    ("S2.35 S2.57", issue_of_an_incomplete_call, SANITIZED),
    ("S2.57", lambda: format_sanitization_issues([]), "No issues found"),
    (
        "S2.55 call",
        lambda: errors_of(CALLED)[0],
        "message 1: tool_call call_abc123 missing matching tool_result",
    ),
    (
        "S2.55 result",
        lambda: errors_of([{"role": "user", "content": [RESULT]}])[0],
        "message 0: tool_result call_abc123 missing matching tool_call",
    ),
    (
        "S0.3",
        lambda: " ".join(get_args(PendingStatus)),
        "waiting processing completed failed expired cancelled",
    ),
]


@pytest.mark.parametrize("where, said, sentence", TEXTS, ids=[where for where, _, _ in TEXTS])
def test_the_sentence_is_said_word_for_word(where: str, said: object, sentence: str) -> None:
    """SX.6"""
    assert callable(said)
    assert said() == sentence
