"""The agent's to-do list: validation, and its text for the model."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, cast, get_args

from perdure.errors import Refused

TodoStatus = Literal["pending", "in_progress", "completed"]
TodoPriority = Literal["low", "medium", "high"]

_STATUSES: Final = get_args(TodoStatus)
_PRIORITIES: Final = get_args(TodoPriority)
_MAX_RECOVERED: Final = 1_000  # items that are kept of a recorded list
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
    active_form: str
    priority: TodoPriority = "medium"

    def to_json(self) -> dict[str, Any]:
        """Return the todo as plain JSON values."""
        return {
            "id": self.id,
            "content": self.content,
            "status": self.status,
            "priority": self.priority,
            "activeForm": self.active_form,
        }


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


class RecoveredTodos(NamedTuple):
    """Items of a recorded list, made valid, and a sentence for each change."""

    todos: tuple[Todo, ...]
    problems: tuple[str, ...] = ()


def recovered_todos(items: object) -> RecoveredTodos | None:
    """Return a recorded list with every item that has content; None if it is malformed.

    An item that breaks a rule is changed rather than dropped. Only repetitions are left out. An
    empty list is valid: it clears the one before.
    """
    recovery = _Recovery()
    for number, item in enumerate(items[:_MAX_RECOVERED] if isinstance(items, list) else (), 1):
        recovery.add(item, number)
    if not recovery.items and items != []:
        return None
    if isinstance(items, list) and len(items) > _MAX_RECOVERED:
        recovery.problems.append(f"only the first {_MAX_RECOVERED} todos were kept")
    return RecoveredTodos(check_todos(recovery.items), tuple(recovery.problems))


class _Recovery:
    """Collects the items of a recorded list."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self._contents: set[str] = set()
        self._ids: set[str] = set()
        self._is_busy = False

    def add(self, item: object, number: int) -> None:
        """Add an item, with the nearest values that the rules allow."""
        data = item if isinstance(item, Mapping) else {"content": item}
        content = _stripped(data.get("content"))
        if content is None or content.casefold() in self._contents:
            reason = "has no content" if content is None else "repeats another"
            self.problems.append(f"todo {number} {reason}: left out")
            return
        self._contents.add(content.casefold())
        todo: dict[str, Any] = {"content": content, "status": self._status(data, number)}
        todo["activeForm"] = _stripped(data.get("activeForm")) or content
        if data.get("priority") in _PRIORITIES:
            todo["priority"] = data["priority"]
        todo_id = _stripped(data.get("id"))
        if todo_id is not None and todo_id not in self._ids:
            self._ids.add(todo_id)
            todo["id"] = todo_id
        self.items.append(todo)

    def _status(self, data: Mapping[Any, Any], number: int) -> str:
        status = data.get("status")
        if status not in _STATUSES:
            self.problems.append(f"the status of todo {number} is unknown: pending")
            return "pending"
        if status == "in_progress" and self._is_busy:
            self.problems.append(f"todo {number} is a second one in_progress: pending")
            return "pending"
        self._is_busy = self._is_busy or status == "in_progress"
        return str(status)


def _stripped(value: object) -> str | None:
    return value.strip() or None if isinstance(value, str) else None


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
    return Todo(
        content=_text(item.get("content"), "content", number),
        status=cast("TodoStatus", _choice(item.get("status"), _STATUSES, "status", number)),
        id=_text(item["id"], "id", number) if item.get("id") else next(free_ids),
        active_form=_text(item.get("activeForm"), "activeForm", number),
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
