"""What a background agent waits for, in words that every surface uses."""

from typing import Any

import pytest
from tests.core.pending.test_settlement import record

from perdure.core.log.events import ApprovalPolicy
from perdure.runtime.diagnosis.tasks import (
    decision_text,
    waiting_answer,
    waiting_row,
    waiting_text,
)


@pytest.mark.parametrize(
    "fields, text",
    [
        ({}, "waits for an approver: approve refund"),
        ({"prompt": "Refund\n it?"}, "waits for an approver: approve refund (Refund it?)"),
        (
            {"policy": ApprovalPolicy(approvers=("ana", "admin"), min_approvals=2)},
            "waits for ana or admin: approve refund, 2 approvals",
        ),
        (
            {"kind": "tool", "prompt": "Start it?"},
            "waits for a submitter: the result of refund",
        ),
        (
            {"kind": "question", "prompt": "Which\x1b[31m?"},
            r'waits for an approver: answer "Which\x1b[31m?"',
        ),
    ],
)
def test_a_wait_names_its_approvers_and_what_they_decide(fields: dict[str, Any], text: str) -> None:
    assert waiting_text(waiting_row(record(**fields))) == text


def test_a_decision_is_made_with_a_command_or_on_its_page() -> None:
    row = waiting_row(record())
    assert decision_text(row) == "perdure approve p_1"
    place = decision_text(row, "https://agents.example/")
    assert place == "perdure approve p_1, or https://agents.example/pending/p_1"


def test_nothing_is_said_of_a_task_that_waits_for_nobody() -> None:
    assert waiting_answer([]) == {}
    answer = waiting_answer([record("question", prompt="Which?")], "https://agents.example")
    assert answer["message"] == (
        'The task is still running. It waits for an approver: answer "Which?". To decide: perdure '
        "pending respond p_1 --output '…', or https://agents.example/pending/p_1."
    )
