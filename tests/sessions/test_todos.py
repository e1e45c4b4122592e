"""The todos of a running agent."""

from typing import Any

import pytest

from perdure.errors import Refused
from perdure.sessions import TodoManager

DIG = {"content": "Dig", "status": "pending", "activeForm": "Digging"}


def test_an_update_replaces_the_whole_list_and_gives_ids() -> None:
    """S2.60, S2.62"""
    todos = TodoManager()
    todos.update_todos([DIG, {**DIG, "content": "Fill", "status": "in_progress", "id": "x"}])
    rest = {**DIG, "content": "Rest"}
    assert todos.update_todos([rest]) == [{"id": "1", **rest, "priority": "medium"}]


def test_what_is_read_is_a_copy() -> None:
    """S2.60"""
    todos = TodoManager()
    todos.update_todos([DIG])
    todos.get_todos()[0]["content"] = "changed"
    todos.get_todos().clear()
    assert todos.get_todos()[0]["content"] == "Dig"
    todos.clear()
    assert todos.get_todos() == []


@pytest.mark.parametrize(
    "given, why",
    [
        ([DIG, {**DIG, "content": "dig"}], "duplicate todo: dig"),
        (
            [{**DIG, "content": c, "status": "in_progress"} for c in "ab"],
            "only one todo can be in_progress",
        ),
        ([{"content": " ", "status": "pending"}], "todo 1 needs content that is not blank"),
        ([{**DIG, "activeForm": ""}], "todo 1 needs activeForm that is not blank"),
        (
            [{**DIG, "status": "done"}],
            "the status of todo 1 must be one of pending, in_progress, completed",
        ),
        (None, "todos must be a list"),
        ("Dig", "todos must be a list"),
        (DIG, "todos must be a list"),
    ],
)
def test_a_list_that_breaks_the_rules_is_refused(given: Any, why: str) -> None:
    """S2.61, SX.6"""
    todos = TodoManager()
    todos.update_todos([{**DIG, "content": "Kept"}])
    with pytest.raises(Refused) as caught:
        todos.update_todos(given)
    assert caught.value.message == f"Invalid todo update: {why}"
    assert [todo["content"] for todo in todos.get_todos()] == ["Kept"]


@pytest.mark.parametrize("given", [None, 5, "x", [], [5], [{}], [None, [DIG]]])
def test_nothing_recovered_is_refused(given: Any) -> None:
    """S2.60"""
    todos = TodoManager()
    todos.set_todos(given)
    assert todos.get_todos() == []


def test_the_items_of_a_recovered_list_are_kept_and_made_valid() -> None:
    """S2.60"""
    todos = TodoManager()
    busy = [{"content": c, "status": "in_progress"} for c in "ab"]
    todos.set_todos([DIG, 5, *busy, DIG])
    shown = [(todo["content"], todo["status"]) for todo in todos.get_todos()]
    assert shown == [("Dig", "pending"), ("a", "in_progress"), ("b", "pending")]
