"""The agent's to-do list: validation, and its text for the model."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args

from perdure.errors import Refused

TodoStatus = Literal["pending", "in_progress", "completed"]
TodoPriority = Literal["low", "medium", "high"]

_STATUSES: Final = get_args(TodoStatus)
_PRIORITIES: Final = get_args(TodoPriority)
_MAX_VALID: Final = 200  # items that are kept of an invalid list
_KEYS: Final = frozenset({"content", "status", "activeForm", "id", "priority"})
_BOXES: Final[Mapping[TodoStatus, str]] = {
    "pending": "[ ]",
    "in_progress": "[~]",
    "completed": "[x]",
}


@dataclass(frozen=True, slots=True)
class Todo:
    """One item of the list."""

    content: str
    status: TodoStatus
    id: str
    active_form: str | None = None
    priority: TodoPriority = "medium"

    def to_json(self) -> dict[str, Any]:
        """Return the todo as plain JSON values."""
        data = {
            "id": self.id,
            "content": self.content,
            "status": self.status,
            "priority": self.priority,
        }
        return data if self.active_form is None else {**data, "activeForm": self.active_form}


def check_todos(items: object) -> tuple[Todo, ...]:
    """Return the validated list, which replaces the current one. Raises Refused TODO_INVALID.

    Missing ids are derived from positions: the same list always gets the same ids.
    """
    if not isinstance(items, Sequence) or isinstance(items, (str, bytes)):
        raise _invalid("todos must be a list")
    used_ids = {str(item["id"]) for item in items if isinstance(item, Mapping) and item.get("id")}
    free_ids = (
        str(number) for number in range(1, 2 * len(items) + 1) if str(number) not in used_ids
    )
    todos = tuple(_parse_todo(item, number, free_ids) for number, item in enumerate(items, start=1))
    _check_list(todos)
    return todos


def is_todo_tool(name: object) -> bool:
    """Return True if a tool of this name writes the list: `todo_write`, elsewhere `TodoWrite`."""
    return isinstance(name, str) and name.replace("_", "").casefold() == "todowrite"


def valid_todos(items: object) -> tuple[Todo, ...] | None:
    """Return the valid items of a recorded list; None if it is not a list or has none."""
    if not isinstance(items, list):
        return None
    try:
        return check_todos(items)
    except Refused:
        valid_items: list[Any] = []
        for item in items[:_MAX_VALID]:
            if _is_valid([*valid_items, item]):
                valid_items.append(item)
        return check_todos(valid_items) if valid_items else None


def _is_valid(items: list[Any]) -> bool:
    try:
        check_todos(items)
    except Refused:
        return False
    return True


def describe_todos(todos: Sequence[Todo]) -> str:
    """Return the list as text for the model."""
    if not todos:
        return "The todo list is empty."
    completed = sum(todo.status == "completed" for todo in todos)
    lines = (f"{_BOXES[todo.status]} {todo.content}" for todo in todos)
    return "\n".join([f"Todos, {completed} of {len(todos)} completed:", *lines])


def _parse_todo(item: object, number: int, free_ids: Iterator[str]) -> Todo:
    if not isinstance(item, Mapping):
        raise _invalid(f"todo {number} must be an object")
    if unknown := sorted(str(key) for key in set(item) - _KEYS):
        raise _invalid(f"todo {number} has unknown keys: {', '.join(unknown)}")
    active_form = item.get("activeForm")
    return Todo(
        content=_text(item.get("content"), "content", number),
        status=cast("TodoStatus", _choice(item.get("status"), _STATUSES, "status", number)),
        id=_text(item["id"], "id", number) if item.get("id") else next(free_ids),
        active_form=None if active_form is None else _text(active_form, "activeForm", number),
        priority=cast(
            "TodoPriority",
            _choice(item.get("priority") or "medium", _PRIORITIES, "priority", number),
        ),
    )


def _text(value: object, key: str, number: int) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _invalid(f"todo {number} needs {key} that is not blank")
    return value.strip()


def _choice(value: object, allowed: Sequence[str], key: str, number: int) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise _invalid(f"the {key} of todo {number} must be one of {', '.join(allowed)}")
    return value


def _check_list(todos: Sequence[Todo]) -> None:
    if sum(todo.status == "in_progress" for todo in todos) > 1:
        raise _invalid("only one todo can be in_progress")
    for key, values in (
        ("todo", Counter(todo.content.casefold() for todo in todos)),
        ("id", Counter(todo.id for todo in todos)),
    ):
        if duplicates := [value for value, count in values.items() if count > 1]:
            raise _invalid(f"duplicate {key}: {duplicates[0]}")


def _invalid(problem: str) -> Refused:
    return Refused(
        f"Invalid todo update: {problem}",
        code="TODO_INVALID",
        hint="send the whole list again, corrected",
    )
