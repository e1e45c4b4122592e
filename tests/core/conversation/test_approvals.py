"""What the model reads about the approval of its call, before the result."""

from typing import Any

import pytest

from perdure.core.conversation.messages import Message, ToolMessage, conversation
from perdure.core.log import events
from perdure.core.log.events import Event, StampedEvent
from perdure.core.providers.formats import render
from perdure.testing.provider_rules import check

EDITED = (
    "The user changed the arguments of this call; what follows is the outcome of pay with "
    '{"to": "DE1", "cents": 1}.'
)
TOOLS = [{"name": "pay", "input_schema": {"type": "object"}}]


def decision(kind: Any = "edit", **fields: Any) -> events.Decision:
    return events.Decision(
        pending_id="p_1", kind=kind, by="ana", via="python", call_id="c", **fields
    )


def messages(
    *decisions: events.Decision | events.Vote, result: Any = "OK", redact: tuple[str, ...] = ()
) -> list[Message]:
    params = {"to": "DE1", "cents": 9000}
    log: list[Event] = [
        events.User(role="user", content="go"),
        events.Assistant(role="assistant", content="", agent="a", turn=1, request_head=1),
        events.ToolCall(id="c", tool="pay", params=params, agent="a", turn=1, redact=redact),
        *decisions,
        events.ToolResult(tool_call_id="c", result=result),
    ]
    return conversation([StampedEvent(n, n, event) for n, event in enumerate(log, 1)])


def content(*decisions: events.Decision | events.Vote, **log: Any) -> Any:
    last = messages(*decisions, **log)[-1]
    assert isinstance(last, ToolMessage)
    return last.content


def test_the_model_reads_that_its_arguments_were_changed_and_which_ones_ran() -> None:
    assert content(decision(args={"cents": 1})) == f"{EDITED}\n\nOK"


def test_the_model_reads_the_note_of_an_edit_and_of_a_plain_approval() -> None:
    note = "only one cent"
    assert content(decision(args={"cents": 1}, note=note)) == (
        f"{EDITED} Note from the user: only one cent\n\nOK"
    )
    assert content(decision("approve", note=note)) == (
        "The user approved this call. Note from the user: only one cent\n\nOK"
    )


@pytest.mark.parametrize(
    "silent",
    [
        decision("approve"),
        decision("approve", note=" "),
        decision(args={"cents": 9000}),
        decision("respond"),
        decision("deny", reason="no"),
    ],
)
def test_a_result_is_unchanged_if_nothing_was_edited_or_noted(silent: events.Decision) -> None:
    assert content(silent) == content() == "OK"


def test_the_model_reads_no_secret_that_an_approver_typed() -> None:
    text = content(decision(args={"to": "SECRET", "cents": 1}), redact=("to",))
    assert "SECRET" not in text
    assert '{"to": "***", "cents": 1}' in text


def test_two_decisions_about_one_call_are_reported_together() -> None:
    text = content(decision(args={"cents": 1}, note="less"), decision("approve", note="again"))
    assert text == f"{EDITED} Note from the user: less; again\n\nOK"


def vote(by: str, note: str | None) -> events.Vote:
    return events.Vote(pending_id="p_1", by=by, via="python", call_id="c", note=note)


def test_the_model_reads_the_notes_of_all_approvers_of_a_call() -> None:
    votes = vote("ana", "checked"), vote("ben", "fine"), decision("approve", note="fine")
    text = "The user approved this call. Note from the user: checked; fine\n\nOK"
    assert content(*votes) == text
    assert content(vote("ana", None), vote("ben", " "), decision("approve")) == "OK"


def test_the_text_precedes_a_result_of_parts_and_replaces_an_empty_one() -> None:
    edit = decision(args={"cents": 1})
    image = {"type": "file", "media_type": "image/png", "url": "https://example.com/a.png"}
    assert content(edit, result=[image]) == [{"type": "text", "text": EDITED}, image]
    assert content(edit, result="") == EDITED


@pytest.mark.parametrize("wanted", ["anthropic", "openai-chat", "openai-responses"])
def test_every_provider_is_sent_the_edit_with_the_result(wanted: Any) -> None:
    body = render(messages(decision(args={"cents": 1}, note="less")), wanted)
    assert "The user changed the arguments of this call" in str(body)
    assert "Note from the user: less" in str(body)
    assert check({"max_tokens": 1, "tools": TOOLS, **body}, wanted) == []
