"""The agent's own list of what is to be done: what a valid list is, and how it reads."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args

from perdure.errors import Refused

Status = Literal["pending", "in_progress", "completed"]
Priority = Literal["low", "medium", "high"]

_STATUSES: Final = get_args(Status)
_PRIORITIES: Final = get_args(Priority)
_MOST_KEPT: Final = 200  # of a list that breaks the rules
_KEYS: Final = frozenset({"content", "status", "activeForm", "id", "priority"})
_BOXES: Final[Mapping[Status, str]] = {
    "pending": "[ ]",
    "in_progress": "[~]",
    "completed": "[x]",
}


@dataclass(frozen=True, slots=True)
class Todo:
    """One thing to do."""

    content: str
    status: Status
    id: str
    active_form: str | None = None
    priority: Priority = "medium"

    def to_json(self) -> dict[str, Any]:
        """The todo as events and doors show it."""
        shown = {
            "id": self.id,
            "content": self.content,
            "status": self.status,
            "priority": self.priority,
        }
        return shown if self.active_form is None else {**shown, "activeForm": self.active_form}


def check_todos(items: object) -> tuple[Todo, ...]:
    """The list that replaces the present one, or Refused "Invalid todo update: …".

    Ids that are missing are made from the position, the same ones for the same list.
    """
    if not isinstance(items, Sequence) or isinstance(items, (str, bytes)):
        raise _refused("todos must be a list")
    taken = {str(item["id"]) for item in items if isinstance(item, Mapping) and item.get("id")}
    free = (str(number) for number in range(1, 2 * len(items) + 1) if str(number) not in taken)
    todos = tuple(_checked(item, number, free) for number, item in enumerate(items, start=1))
    _check_together(todos)
    return todos


def is_todo_tool(name: object) -> bool:
    """Whether a tool of this name writes the list: `todo_write`, elsewhere also `TodoWrite`."""
    return isinstance(name, str) and name.replace("_", "").casefold() == "todowrite"


def kept_todos(items: object) -> tuple[Todo, ...] | None:
    """What of a recorded list keeps the rules; None if it is no list, or nothing of it does."""
    if not isinstance(items, list):
        return None
    try:
        return check_todos(items)
    except Refused:
        kept: list[Any] = []
        for item in items[:_MOST_KEPT]:
            if _fits([*kept, item]):
                kept.append(item)
        return check_todos(kept) if kept else None


def _fits(items: list[Any]) -> bool:
    try:
        check_todos(items)
    except Refused:
        return False
    return True


def describe(todos: Sequence[Todo]) -> str:
    """The list as the model reads it back."""
    if not todos:
        return "The todo list is empty."
    done = sum(todo.status == "completed" for todo in todos)
    lines = (f"{_BOXES[todo.status]} {todo.content}" for todo in todos)
    return "\n".join([f"Todos, {done} of {len(todos)} completed:", *lines])


def _checked(item: object, number: int, free: Iterator[str]) -> Todo:
    if not isinstance(item, Mapping):
        raise _refused(f"todo {number} must be an object")
    if unknown := sorted(str(key) for key in set(item) - _KEYS):
        raise _refused(f"todo {number} has unknown keys: {', '.join(unknown)}")
    active = item.get("activeForm")
    return Todo(
        content=_text(item.get("content"), "content", number),
        status=cast("Status", _one_of(item.get("status"), _STATUSES, "status", number)),
        id=_text(item["id"], "id", number) if item.get("id") else next(free),
        active_form=None if active is None else _text(active, "activeForm", number),
        priority=cast(
            "Priority",
            _one_of(item.get("priority") or "medium", _PRIORITIES, "priority", number),
        ),
    )


def _text(value: object, key: str, number: int) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _refused(f"todo {number} needs {key} that is not blank")
    return value.strip()


def _one_of(value: object, allowed: Sequence[str], key: str, number: int) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise _refused(f"the {key} of todo {number} must be one of {', '.join(allowed)}")
    return value


def _check_together(todos: Sequence[Todo]) -> None:
    if sum(todo.status == "in_progress" for todo in todos) > 1:
        raise _refused("only one todo can be in_progress")
    for key, values in (
        ("todo", Counter(todo.content.casefold() for todo in todos)),
        ("id", Counter(todo.id for todo in todos)),
    ):
        if twice := [value for value, count in values.items() if count > 1]:
            raise _refused(f"duplicate {key}: {twice[0]}")


def _refused(why: str) -> Refused:
    return Refused(f"Invalid todo update: {why}", code="TODO_INVALID")
