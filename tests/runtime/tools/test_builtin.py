"""The built-in tools."""

from typing import Any

import pytest

from perdure.errors import ConfigError, Refused, ToolError
from perdure.runtime.tools.builtin import ASK_USER, TODO_WRITE, WAIT, resolve_tool, wait_duration_ms
from perdure.runtime.tools.invoke import invoke
from perdure.runtime.values import Context


def test_built_ins_are_found_by_name() -> None:
    assert [resolve_tool(name).kind for name in ("ask_user", "wait", "todo_write")] == [
        *("question", "timer", None),
    ]
    assert resolve_tool(WAIT) is WAIT
    with pytest.raises(ConfigError, match="no built-in tool 'ask'") as caught:
        resolve_tool("ask")
    assert caught.value.hint == (
        "the built-in tools are ask_user, wait, todo_write, execute_command"
    )


@pytest.mark.parametrize("seconds", [0, -1, 366 * 86_400 + 1, "5", True], ids=repr)
def test_a_wait_is_longer_than_nothing_and_not_longer_than_a_year(seconds: Any) -> None:
    with pytest.raises(Refused, match="seconds: must be"):
        WAIT.validate({"seconds": seconds})
    assert wait_duration_ms(WAIT.validate({"seconds": 1.5})) == 1_500


def test_a_question_is_not_empty() -> None:
    with pytest.raises(Refused, match="question: must be at least 1"):
        ASK_USER.validate({"question": ""})


async def test_what_the_runtime_does_cannot_be_called() -> None:
    for made in (ASK_USER, WAIT):
        with pytest.raises(ToolError, match=f"{made.name} is run by the runtime"):
            await invoke(made, Context(deps=None, tool=made.name))


async def test_todos_are_checked_and_read_back() -> None:
    """S2.61"""
    todos = [
        {"content": "a", "status": "in_progress", "activeForm": "Doing a"},
        {"content": "b", "status": "pending", "activeForm": "Doing b"},
    ]
    args = TODO_WRITE.validate({"todos": todos})
    shown = await invoke(TODO_WRITE, Context(deps=None, args=args))
    assert shown == "Todos, 0 of 2 completed:\n[~] a\n[ ] b"
    twice = {"todos": [todos[0], todos[0] | {"content": "A", "status": "pending"}]}
    with pytest.raises(ToolError, match=r"(?m)^Invalid todo update: duplicate todo: a$"):
        await invoke(TODO_WRITE, Context(deps=None, args=twice))
