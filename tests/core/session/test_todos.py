"""Todo lists: which ones are valid, and how they read."""

from typing import Any

import pytest

from perdure.core.session.todos import check_todos, describe_todos, recovered_todos
from perdure.errors import Refused


def todo(content: str = "write the tests", status: str = "pending", **more: Any) -> dict[str, Any]:
    return {"content": content, "status": status, "activeForm": "working", **more}


def test_missing_ids_are_made_and_given_ones_are_kept() -> None:
    """S2.62"""
    todos = check_todos([todo("a"), todo("b", id="1"), todo("c", id="mine")])
    assert [one.id for one in todos] == ["2", "1", "mine"]
    assert {one.priority for one in todos} == {"medium"}


def test_a_todo_keeps_its_fields_in_json() -> None:
    given = todo(activeForm="writing the tests", id="7", priority="high", status="in_progress")
    assert check_todos([given])[0].to_json() == given


@pytest.mark.parametrize(
    "items, why",
    [
        ("not a list", "todos must be a list"),
        (None, "todos must be a list"),
        (["text"], "todo 1 must be an object"),
        ([todo(" ")], "todo 1 needs content that is not blank"),
        ([todo(activeForm="")], "todo 1 needs activeForm that is not blank"),
        ([{"content": "x", "status": "pending"}], "todo 1 needs activeForm that is not blank"),
        ([todo(id=3)], "todo 1 needs id that is not blank"),
        ([{"content": "x"}], "the status of todo 1 must be one of pending, in_progress, completed"),
        ([{"content": "x", "status": ["pending"]}], "the status of todo 1 must be one of"),
        ([todo(priority="urgent")], "the priority of todo 1 must be one of low, medium, high"),
        ([todo(due="now")], "todo 1 has unknown keys: due"),
        ([todo("a", "in_progress"), todo("b", "in_progress")], "only one todo can be in_progress"),
        ([todo("Ship it"), todo("ship IT ")], "duplicate todo: ship it"),
        ([todo("a", id="1"), todo("b", id="1")], "duplicate id: 1"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(items: object, why: str) -> None:
    """S2.61"""
    with pytest.raises(Refused) as caught:
        check_todos(items)
    assert str(caught.value).startswith(f"Invalid todo update: {why}")


def test_the_model_reads_the_list_back() -> None:
    todos = check_todos([todo("a", "completed"), todo("b", "in_progress"), todo("c")])
    assert describe_todos(todos) == "Todos, 1 of 3 completed:\n[x] a\n[~] b\n[ ] c"
    assert describe_todos(()) == "The todo list is empty."


def test_a_recovered_list_keeps_every_item_and_says_what_was_changed() -> None:
    """S2.60 S2.61"""
    recovered = recovered_todos(
        [
            todo("a", "in_progress", id="1", priority="high"),
            todo("b", "in_progress", id="1"),
            {"content": "c", "status": "done", "due": "now"},
            "d",
            todo("A"),
            5,
        ]
    )
    assert recovered is not None
    assert [(one.content, one.status, one.priority) for one in recovered.todos] == [
        ("a", "in_progress", "high"),
        ("b", "pending", "medium"),
        ("c", "pending", "medium"),
        ("d", "pending", "medium"),
    ]
    assert [one.active_form for one in recovered.todos] == ["working", "working", "c", "d"]
    assert recovered.problems == (
        "todo 2 is a second one in_progress: pending",
        "the status of todo 3 is unknown: pending",
        "the status of todo 4 is unknown: pending",
        "todo 5 repeats another: left out",
        "todo 6 has no content: left out",
    )
    assert recovered_todos([None, 5]) is None


def test_an_empty_list_is_recovered_as_an_empty_list() -> None:
    """S2.39"""
    recovered = recovered_todos([])
    assert recovered is not None
    assert (recovered.todos, recovered.problems) == ((), ())
    assert recovered_todos({}) is None
    assert recovered_todos(None) is None
