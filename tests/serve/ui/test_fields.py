"""Fields of a form: from a schema to text, and back to values."""

from typing import Any

import pytest

from perdure.serve.ui.fields import Fields, stored_fields, submitted_fields

SCHEMA = {
    "type": "object",
    "properties": {
        "order": {"type": "integer"},
        "share": {"type": "number"},
        "reason": {"type": "string", "description": "Why."},
        "currency": {"enum": ["EUR", "USD"], "type": "string", "default": "EUR"},
        "notify": {"type": "boolean"},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}},
        "secret": {"type": "string"},
    },
    "required": ["order"],
    "$defs": {"Line": {"type": "object"}},
}
ARGS: dict[str, Any] = {
    "order": 991,
    "share": 0.5,
    "reason": "",
    "notify": True,
    "lines": [{"a": 1}],
    "secret": "hush",
    "unknown": {"x": None},
}


def submit(texts: dict[str, str], schema: dict[str, Any] | None = SCHEMA) -> Fields:
    form = stored_fields(ARGS, schema, frozenset({"secret"}))
    return submitted_fields(form, texts.get)


def test_every_argument_has_a_field_of_its_type_and_a_secret_one_is_not_shown() -> None:
    form = stored_fields(ARGS, SCHEMA, frozenset({"secret"}))
    assert {field.name: field.widget for field in form.fields} == {
        "order": "number",
        "share": "number",
        "reason": "line",
        "currency": "choice",
        "notify": "choice",
        "limit": "number",
        "lines": "json",
        "secret": "hidden",
        "unknown": "json",
    }
    assert "hush" not in str(form)
    assert next(field for field in form.fields if field.name == "currency").default == "EUR"


def test_a_form_that_comes_back_unchanged_changes_nothing() -> None:
    form = stored_fields(ARGS, SCHEMA, frozenset({"secret"}))
    texts = {f"arg.{field.name}": field.value for field in form.fields} | {"json": form.whole}
    assert submitted_fields(form, texts.get).changes == {}


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("order", "17", 17),
        ("order", " -3 ", -3),
        ("share", "2", 2),
        ("share", "1e3", 1000.0),
        ("reason", "paid twice", "paid twice"),
        ("currency", '"USD"', "USD"),
        ("notify", "false", False),
        ("limit", "5", 5),
        ("lines", "[]", []),
        ("unknown", '"text"', "text"),
    ],
)
def test_a_changed_text_becomes_a_value(name: str, text: str, value: Any) -> None:
    form = submit({f"arg.{name}": text})
    assert form.is_valid
    assert form.changes == {name: value}


@pytest.mark.parametrize(
    "name, text",
    [
        ("order", "many"),
        ("order", ""),
        ("order", "1.5"),
        ("share", "true"),
        ("share", "NaN"),
        ("lines", "[1,"),
        ("lines", "[" * 100_000),
    ],
)
def test_a_text_that_is_not_a_value_is_kept_and_named(name: str, text: str) -> None:
    form = submit({f"arg.{name}": text})
    assert not form.is_valid
    assert form.changes == {}
    field = next(field for field in form.fields if field.name == name)
    assert field.value == text
    assert field.problem


def test_all_arguments_can_be_edited_as_json_but_none_removed() -> None:
    whole = '{"order": 991, "share": 0.5, "reason": "x", "notify": 1, "lines": [], "unknown": {}}'
    form = submit({"json": whole})
    assert form.changes == {"reason": "x", "notify": 1, "lines": [], "unknown": {}}
    assert "order" in submit({"json": "{}"}).whole_problem
    assert submit({"json": "[]"}).whole_problem
    assert submit({"json": "{"}).whole_problem


def test_a_tool_that_is_not_known_still_has_a_form() -> None:
    form = submit({"arg.order": "5"}, schema=None)
    assert form.changes == {"order": 5}


def test_a_problem_inside_an_argument_is_shown_at_its_field() -> None:
    form = submit({}).with_problems({"lines.0.a": "must be text", "": "too many"})
    lines = next(field for field in form.fields if field.name == "lines")
    assert lines.problem == "lines.0.a: must be text"
    assert form.whole_problem == "too many"
