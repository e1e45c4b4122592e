"""Depth of JSON, measured without parsing it."""

import json
import time
from typing import Any

import pytest

from perdure.core.json_depth import (
    ENVELOPE,
    MAX_DEPTH,
    READABLE_DEPTH,
    check_body_depth,
    check_readable,
    encode_value,
    is_deeper,
    pruned,
)
from perdure.core.json_values import json_problem
from perdure.errors import Corrupt, Refused


def lists(depth: int, inside: str = "") -> str:
    return "[" * depth + inside + "]" * depth


def objects(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "text, depth",
    [
        (lists(101), 101),
        ('{"a":' * 150 + "1" + "}" * 150, 150),
        (f"[{','.join(['[[]]'] * 300)}]", 3),
        (json.dumps(["[" * 400, '"[[', "\\", '\\"[['] * 90), 1),
        (json.dumps([{"a": [{}]}] * 200, indent=4), 4),
        (lists(50) + lists(120), 120),
        ("[" * 5_000, 5_000),
    ],
)
def test_the_depth_of_json_is_measured_on_its_brackets_outside_of_text(
    text: str, depth: int
) -> None:
    assert not is_deeper(text, depth)
    assert is_deeper(text.encode(), depth - 1)


@pytest.mark.parametrize("end", [b"a" * 25, b'\\"' * 40_000, b'\\"' * 40_000 + b"\\"])
def test_the_depth_of_text_without_its_end_is_found_in_one_pass(end: bytes) -> None:
    """S0.8; such a body would hold the event loop of a server for ever"""
    started = time.process_time()
    data = b"[]" * 200 + b'"[[' + end
    assert not is_deeper(data, MAX_DEPTH)
    assert pruned(data) == data
    assert time.process_time() - started < 1


def test_a_value_may_be_as_deep_as_the_limit_and_no_deeper() -> None:
    assert encode_value(objects(MAX_DEPTH), "metadata")
    check_body_depth(lists(MAX_DEPTH + ENVELOPE).encode(), "the body")
    for value in (objects(MAX_DEPTH + 1), objects(5_000), itself()):
        with pytest.raises(Refused, match="metadata is nested deeper than 100 levels") as refused:
            encode_value(value, "metadata")
        assert (refused.value.code, bool(refused.value.hint)) == ("TOO_DEEP", True)
    with pytest.raises(Refused, match="the body is nested"):
        check_body_depth(lists(MAX_DEPTH + ENVELOPE + 1).encode(), "the body")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_does_not_have_is_refused_and_null_is_not(number: float) -> None:
    """S0.8"""
    for value in (number, [number], {"a": (1, {"b": number})}, {number}):
        with pytest.raises(ValueError, match="is not a number of JSON"):
            encode_value(value, "metadata")
    assert encode_value({"a": [None, 1.5], "null": {}}, "metadata")


def itself() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


def test_settings_that_are_too_deep_or_contain_themselves_are_named_in_short() -> None:
    assert json_problem(objects(MAX_DEPTH), "extra") is None
    for value in (objects(MAX_DEPTH + 1), objects(5_000), itself()):
        problem = json_problem(value, "extra") or ""
        assert problem.endswith("is nested deeper than 100 levels")
        assert len(problem) < 100


def test_stored_data_is_readable_up_to_a_depth_that_every_stack_has_room_for() -> None:
    check_readable(lists(READABLE_DEPTH).encode())
    with pytest.raises(Corrupt, match="nested deeper than 500 levels"):
        check_readable(lists(READABLE_DEPTH + 1).encode())


def test_what_is_nested_too_deeply_is_replaced_by_a_mark() -> None:
    deep = '{"a":' * 950 + '"}"' + "}" * 950
    data = f'{{"id":"s","first":{deep},"title":"}}{{","second":{lists(300)},"ok":[[1]]}}'
    value = json.loads(pruned(data.encode()))
    assert (value["id"], value["title"], value["ok"]) == ("s", "}{", [[1]])
    text = json.dumps(value)
    assert text.count("[nested too deeply]") == 2
    assert not is_deeper(text, MAX_DEPTH)
    assert pruned(lists(MAX_DEPTH).encode()) == lists(MAX_DEPTH).encode()
