"""What a tool returned, for the model and for the record."""

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any

import pytest
from pydantic import BaseModel

from perdure.errors import ToolError
from perdure.runtime.tools.outputs import Deferred, parse_deferred, render_result
from perdure.views.values import File

PNG = File("image/png", data=b"\x89PNG", name="chart.png")


class Model(BaseModel):
    x: int


@dataclass
class Point:
    x: int


class Mood(StrEnum):
    GOOD = "good"


class Plain(Enum):
    ONE = "one"


class Unshowable:
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


SHOWN = [
    ("text", "text"),
    ("", ""),
    (None, "(no output)"),
    (Mood.GOOD, "good"),
    (Plain.ONE, "one"),
    (True, "true"),
    ({"ä": [1, None]}, '{"ä":[1,null]}'),
    ([Model(x=1), Point(2)], '[{"x":1},{"x":2}]'),
    (float("nan"), '"NaN"'),
    ({"a": float("inf")}, '{"a":"Infinity"}'),
    (b"abc", "[3 bytes; a tool shows bytes by returning a File]"),
    ({"raw": b"abc"}, '{"raw":"YWJj"}'),
    ({"chart": PNG}, '{"chart":"[file chart.png image/png]"}'),
]


@pytest.mark.parametrize("value, shown", SHOWN, ids=[repr(shown) for _, shown in SHOWN])
def test_the_model_sees_text_or_json(value: Any, shown: str) -> None:
    assert render_result(value) == shown


def test_files_are_parts() -> None:
    assert render_result(PNG) == (PNG,)
    assert render_result(["see", PNG, {"a": 1}]) == ("see", PNG, '{"a":1}')


def test_what_cannot_be_shown_leaves_a_mark() -> None:
    circle: list[Any] = []
    circle.append(circle)
    for value in (circle, {"x": "\ud800"}):
        shown = render_result(value)
        assert isinstance(shown, str)
        assert "cannot be shown" in shown
    assert "Unshowable" in render_result(Unshowable())
    assert "Unshowable" in render_result([Unshowable()])


def test_half_a_character_is_replaced() -> None:
    shown = render_result("half \ud800")
    assert isinstance(shown, str)
    assert shown.encode().startswith(b"half ")


def test_a_deferred_tool_returns_its_reference_or_nothing() -> None:
    """S0.13"""
    assert parse_deferred("job-1", "p_1") == Deferred(external_ref="job-1")
    assert parse_deferred(None, "p_1") == parse_deferred("", "p_1") == Deferred()
    assert parse_deferred(Deferred(output="x"), "p_1") == Deferred(output="x")


def test_a_deferred_tool_may_say_more() -> None:
    """S0.13, S0.20: the call's own timeout wins over the tool's."""
    said = {
        "async": True,
        "pendingID": "p_1",
        "externalRef": "job-1",
        "output": "Started.",
        "estimatedDuration": 60_000,
        "timeout": "2h",
    }
    assert parse_deferred(said, "p_1") == Deferred("job-1", "Started.", 60_000, 7_200_000)
    assert parse_deferred({"timeout": 5_000}, "p_1").timeout_ms == 5_000
    assert parse_deferred({"timeout": 0}, "p_1").timeout_ms is None
    assert parse_deferred({"timeout": None}, "p_1").timeout_ms is None
    assert parse_deferred({}, "p_1").timeout_ms is ...


def test_another_pending_id_is_an_error() -> None:
    """S0.5"""
    with pytest.raises(ToolError, match="pendingID 'p_2', but its call is 'p_1'"):
        parse_deferred({"pendingID": "p_2"}, "p_1")


@pytest.mark.parametrize(
    "value, why",
    [
        (7, "returned int"),
        ({"external_ref": "x", "b": 1}, "unknown keys: b, external_ref"),
        ({"async": False}, "async that is not true"),
        ({"externalRef": 7}, "externalRef that is not text"),
        ({"output": ["x"]}, "output that is not text"),
        ({"timeout": "soon"}, "timeout: 'soon' is not a duration"),
        ({"timeout": -1}, "timeout -1, which is not a duration"),
        ({"timeout": True}, "timeout True"),
        ({"estimatedDuration": float("nan")}, "estimatedDuration nan"),
    ],
    ids=repr,
)
def test_what_makes_no_sense_is_named(value: Any, why: str) -> None:
    with pytest.raises(ToolError, match=why) as caught:
        parse_deferred(value, "p_1")
    assert caught.value.code == "DEFERRED_INVALID"
