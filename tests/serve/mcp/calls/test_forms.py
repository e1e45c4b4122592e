"""Forms about pending calls: their fields, and what the answers mean."""

from typing import Any

import pytest
from mcp_types import methods
from tests.core.pending.test_settlement import record

from perdure import Principal, Refused
from perdure.core.log.events import ApprovalPolicy
from perdure.core.pending.commands import Approve, Deny, Respond
from perdure.core.pending.record import PendingVote
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.serve.mcp.access import mcp_caller
from perdure.serve.mcp.calls.forms import Form

ANA = mcp_caller(Caller(Principal("ana", "operator")))
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


def decided(form: Form, response: Any) -> Any:
    """Return the command of what an answer decides."""
    item = form.decision(response)
    return None if item is None else ANA.command(item)


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


ENUM = {"enum": ["red", "blue"], "type": "string"}


@pytest.mark.parametrize(
    "schema, field",
    [
        ({"$ref": "#/$defs/Color"}, ENUM),
        ({"$ref": "#/$defs/Color", "default": "red", "description": "D"}, ENUM),
        ({"anyOf": [{"$ref": "#/$defs/Color"}, {"type": "null"}], "default": None}, ENUM),
        ({"$ref": "#/$defs/Alias"}, ENUM),
        ({"$ref": "#/$defs/Circle"}, None),
        ({"$ref": "#/$defs/Missing"}, None),
        ({"anyOf": [True, {"type": "null"}]}, None),
        ({"anyOf": [True, {"type": "string"}]}, None),
        ({"anyOf": {"type": "string"}}, None),
        (True, None),
    ],
)
def test_an_argument_has_the_field_of_what_its_schema_refers_to(schema: Any, field: Any) -> None:
    """SX.7"""
    definitions = {
        "Color": ENUM,
        "Alias": {"$ref": "#/$defs/Color"},
        "Circle": {"$ref": "#/$defs/Circle"},
    }
    parameters = {"$defs": definitions, "properties": {"color": schema}}
    form = Form(record(input={"color": "blue"}), ANA, parameters)
    shown = form.schema["properties"].get("args.color")
    keys = ("enum", "type", "default")
    found = None if shown is None else {key: shown[key] for key in keys}
    assert found == (None if field is None else {**field, "default": "blue"})


def test_only_changed_arguments_are_edited() -> None:
    content = {"decision": "edit", "args.cents": 5, "args.speed": "fast", "args.note": None}
    command = decided(approval(), accepted(**content))
    assert command == Approve("ana", "mcp:ana", {"speed": "fast"}, role="operator")
    same = decided(approval(), accepted(decision="edit", **{"args.cents": 5}))
    assert same == Approve("ana", "mcp:ana", role="operator")


def test_what_another_approver_changed_is_shown_and_approved_by_its_own_name() -> None:
    """G4"""
    vote = PendingVote("zoe", "mcp:zoe", 1, {"cents": 4, "card": "4222"})
    form = approval(votes=(vote,))
    assert form.message.endswith('Approved by zoe with {"cents": 4, "card": "***"}.')
    assert form.schema["properties"]["decision"]["enum"] == ["approve_changed", "deny"]
    assert not [name for name in form.schema["properties"] if name.startswith("args.")]
    changed = decided(form, accepted(decision="approve_changed"))
    assert changed == Approve("ana", "mcp:ana", vote.args, role="operator")
    # The answer to a form that was shown before: it approves the call as it was shown.
    assert decided(form, accepted(decision="approve")) == Approve("ana", "mcp:ana", role="operator")
    with pytest.raises(Refused, match="decision must be one of"):
        decided(approval(), accepted(decision="approve_changed"))


def test_after_an_approval_of_the_call_as_it_is_nobody_changes_it() -> None:
    """G4"""
    form = approval(votes=(PendingVote("zoe", "mcp:zoe", 1),))
    assert form.message.endswith("Approved by zoe.")
    assert form.schema["properties"]["decision"]["enum"] == ["approve", "deny"]


def test_an_argument_that_the_form_does_not_show_cannot_be_edited() -> None:
    content = {"decision": "edit", "args.card": "1", "args.lines": [], "cents": 1}
    assert decided(approval(), accepted(**content)) == Approve("ana", "mcp:ana", role="operator")


def test_a_call_that_cannot_run_is_not_worth_a_form() -> None:
    assert approval().is_useful
    assert not approval(policy=ApprovalPolicy(allowed_decisions=("deny", "respond"))).is_useful


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
        decided(approval(), response)


def test_a_denial_has_its_reason() -> None:
    command = decided(approval(), accepted(decision="deny", reason="no"))
    assert command == Deny("ana", "mcp:ana", "no", role="operator")


@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.parametrize("kind", ["approval", "question"])
def test_only_a_form_that_is_accepted_decides(kind: Any, action: str) -> None:
    assert decided(Form(record(kind), ANA), {"action": action}) is None


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
    command = decided(form, {"action": "accept", "content": content})
    assert command == Respond("ana", "mcp:ana", output, "operator")


def test_an_answer_that_must_be_json_says_so() -> None:
    form = Form(record("question", schema=NESTED), ANA)
    assert "JSON" in form.schema["properties"]["answer"]["description"]
    with pytest.raises(Refused, match="must be JSON"):
        decided(form, accepted(answer="{"))
