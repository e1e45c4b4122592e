"""The small schema check: what tool schemas use is checked, the rest passes."""

from typing import Any

import pytest

from perdure.core.json_values import schema_defect, schema_problems

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "minLength": 1},
        "mode": {"enum": ["r", "w"]},
        "size": {"type": "integer", "minimum": 1, "exclusiveMaximum": 10},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        "owner": {"$ref": "#/$defs/owner"},
        "when": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["path"],
    "additionalProperties": False,
    "$defs": {
        "owner": {
            "type": "object",
            "properties": {"name": {"type": ["string", "null"]}},
            "required": ["name"],
            "additionalProperties": {"type": "number"},
        }
    },
}


@pytest.mark.parametrize(
    "args",
    [
        {"path": "a"},
        {"path": "a", "mode": "r", "size": 3.0, "tags": ["x"], "when": None},
        {"path": "a", "owner": {"name": None, "age": 4.5}},
    ],
)
def test_what_fits_has_no_problems(args: dict[str, Any]) -> None:
    assert schema_problems(args, SCHEMA) == []


@pytest.mark.parametrize(
    "args, found",
    [
        ([], ("", "must be object")),
        ({}, ("path", "is missing")),
        ({"path": ""}, ("path", "must be at least 1 characters")),
        ({"path": "a", "mode": "x"}, ("mode", "must be one of 'r', 'w'")),
        ({"path": "a", "size": True}, ("size", "must be integer")),
        ({"path": "a", "size": 0}, ("size", "must be at least 1")),
        ({"path": "a", "size": 10}, ("size", "must be less than 10")),
        ({"path": "a", "tags": ["x", 1]}, ("tags[1]", "must be string")),
        ({"path": "a", "tags": ["x", "y", "z"]}, ("tags", "must be at most 2 items")),
        ({"path": "a", "owner": {}}, ("owner.name", "is missing")),
        ({"path": "a", "owner": {"name": 1}}, ("owner.name", "must be string or null")),
        ({"path": "a", "owner": {"name": "x", "y": "z"}}, ("owner.y", "must be number")),
        ({"path": "a", "when": 5}, ("when", "fits none of the alternatives")),
        ({"path": "a", "xyz": 1}, ("xyz", "is not a known argument")),
        (
            {"path": "a", "sise": 1},
            ("sise", "is not a known argument; did you mean 'size'?"),
        ),
    ],
)
def test_each_problem_is_named_with_its_path(args: Any, found: tuple[str, str]) -> None:
    assert schema_problems(args, SCHEMA) == [found]


def test_a_reference_to_itself_ends() -> None:
    loop: dict[str, Any] = {"$ref": "#"}
    assert schema_problems({"a": 1}, loop) == []


def test_true_is_not_one() -> None:
    assert schema_problems(True, {"const": 1}) == [("", "must be 1")]
    assert schema_problems(1, {"enum": [True]}) == [("", "must be one of True")]
    assert schema_problems({"a": [True]}, {"const": {"a": [1]}})
    assert schema_problems({"a": [1, {}]}, {"const": {"a": [1, {}]}}) == []


def test_false_lets_nothing_pass_and_true_everything() -> None:
    assert schema_problems(1, False) == [("", "is not allowed")]
    assert schema_problems(1, True) == []


def test_a_check_ends_whose_references_branch_without_end() -> None:
    """G9: 2 ** 64 steps otherwise"""
    part = {"$ref": "#/$defs/x"}
    schema = {"properties": {"n": part}, "$defs": {"x": {"allOf": [part, part]}}}
    assert schema_problems({"n": 1}, schema) == []


def test_a_schema_that_requires_something_else_than_names_is_a_defect() -> None:
    assert schema_defect({"required": [["a"]]}) == "required of it must be a list of names"
