"""Forms about pending calls: their fields, and what the answers mean."""

from typing import Any

import pytest
from mcp_types import methods
from tests.core.pending.test_settlement import record

from perdure import Principal, Refused
from perdure.core.pending.commands import Approve, Deny, Respond
from perdure.core.pending.record import TOOL_MISSING
from perdure.serve.mcp.access import Caller
from perdure.serve.mcp.calls.forms import Form

ANA = Caller(Principal("ana", "operator"))
PARAMETERS = {
    "properties": {
        "cents": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9, "title": "Cents"},
        "speed": {"enum": ["slow", "fast"], "type": "string"},
        "note": {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]},
        "site": {"type": "string", "format": "uuid"},
        "card": {"type": "string"},
        "lines": {"type": "array", "items": {"type": "string"}},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "size": {"enum": [1, 2], "type": "integer"},
    }
}


def approval(**more: Any) -> Form:
    values = {"cents": 5, "speed": "slow", "card": "4111", "lines": ["x"], "size": 1}
    return Form(record(input=values, redact=("card",), **more), ANA, PARAMETERS)


def accepted(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


def test_an_approval_has_a_field_for_each_argument_that_a_form_can_show() -> None:
    """SX.7"""
    form = approval(prompt="Pay?", details={"shop": "X"})
    fields = dict(form.schema["properties"])
    assert fields.pop("decision")["enum"] == ["approve", "edit", "deny"]
    assert fields.pop("reason")["type"] == "string"
    assert fields == {
        "args.cents": {"type": "integer", "maximum": 9, "title": "cents", "default": 5},
        "args.speed": {
            "type": "string",
            "enum": ["slow", "fast"],
            "title": "speed",
            "default": "slow",
        },
        "args.note": {"type": "string", "maxLength": 5, "title": "note"},
        "args.site": {"type": "string", "title": "site"},
    }
    question, call, details = form.message.splitlines()
    assert (question, details) == ("Pay?", 'Details: {"shop": "X"}')
    assert call.startswith('refund: {"cents": 5')
    assert "4111" not in str(form.request)


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
def test_a_form_is_valid_in_the_older_protocol(version: str) -> None:
    request = approval().request
    methods.parse_server_request(request["method"], version, request["params"])


def test_a_prompt_that_repeats_the_call_is_the_whole_message() -> None:
    assert approval(prompt="Run refund with {}?").message == "Run refund with {}?"


def test_only_changed_arguments_are_edited() -> None:
    content = {"decision": "edit", "args.cents": 5, "args.speed": "fast", "args.note": None}
    command = approval().command(accepted(**content))
    assert command == Approve("ana", "mcp:ana", {"speed": "fast"}, role="operator")
    same = approval().command(accepted(decision="edit", **{"args.cents": 5}))
    assert same == Approve("ana", "mcp:ana", role="operator")


def test_an_argument_that_the_form_does_not_show_cannot_be_edited() -> None:
    content = {"decision": "edit", "args.card": "1", "args.lines": [], "cents": 1}
    assert approval().command(accepted(**content)) == Approve("ana", "mcp:ana", role="operator")


def test_a_call_that_cannot_run_is_not_worth_a_form() -> None:
    assert approval().is_useful
    assert not approval(problem=TOOL_MISSING).is_useful


def test_without_the_code_of_the_tool_nothing_can_be_edited() -> None:
    form = Form(record(), ANA)
    assert form.schema["properties"]["decision"]["enum"] == ["approve", "deny"]


@pytest.mark.parametrize(
    "response",
    [
        None,
        {"action": "shrug"},
        {"action": "accept"},
        {"action": "accept", "content": []},
        accepted(),
        accepted(decision="respond"),
    ],
)
def test_a_response_of_another_form_is_refused(response: Any) -> None:
    with pytest.raises(Refused, match="the response to p_1 is not valid"):
        approval().command(response)


def test_a_denial_has_its_reason() -> None:
    command = approval().command(accepted(decision="deny", reason="no"))
    assert command == Deny("ana", "mcp:ana", "no", role="operator")


@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.parametrize("kind", ["approval", "question"])
def test_only_a_form_that_is_accepted_decides(kind: Any, action: str) -> None:
    assert Form(record(kind), ANA).command({"action": action}) is None


OBJECT = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
NESTED = {"type": "object", "properties": {"a": {"type": "array"}}}


@pytest.mark.parametrize(
    "fields, schema, content, output",
    [
        ({}, {"type": "string"}, {"answer": "42"}, "42"),
        ({"choices": ["a", "b"]}, {"type": "string", "enum": ["a", "b"]}, {"answer": "a"}, "a"),
        ({"choices": [1, 2]}, {"type": "string", "enum": ["1", "2"]}, {"answer": "2"}, 2),
        ({"schema": {"type": "number"}}, {"type": "number"}, {"answer": 4.5}, 4.5),
        ({"schema": OBJECT}, None, {"name": "Ana"}, {"name": "Ana"}),
        ({"schema": NESTED}, None, {"answer": '{"a": [1]}'}, {"a": [1]}),
        ({}, {"type": "string"}, {"other": "x"}, {"other": "x"}),
    ],
)
def test_a_question_is_answered_with_the_value_that_it_asks_for(
    fields: dict[str, Any], schema: Any, content: dict[str, Any], output: Any
) -> None:
    form = Form(record("question", **fields), ANA)
    if schema is not None:
        assert form.schema["properties"] == {"answer": schema}
    command = form.command({"action": "accept", "content": content})
    assert command == Respond("ana", "mcp:ana", output, "operator")


def test_an_answer_that_must_be_json_says_so() -> None:
    form = Form(record("question", schema=NESTED), ANA)
    assert "JSON" in form.schema["properties"]["answer"]["description"]
    with pytest.raises(Refused, match="must be JSON"):
        form.command(accepted(answer="{"))
