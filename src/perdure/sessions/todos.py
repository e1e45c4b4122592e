"""Todos of one agent, in memory: the session's events contain every list."""

from collections.abc import Iterable, Mapping
from typing import Any

from perdure.core.session.todos import Todo, check_todos, recovered_todos


class TodoManager:
    """Holds the current list; an update replaces all of it."""

    def __init__(self) -> None:
        self._todos: tuple[Todo, ...] = ()

    def get_todos(self) -> list[dict[str, Any]]:
        """Return a copy of the current list."""
        return [todo.to_json() for todo in self._todos]

    def update_todos(self, todos: Iterable[Any]) -> list[dict[str, Any]]:
        """Replace the list and return it, with ids. Raises Refused."""
        is_list = isinstance(todos, Iterable) and not isinstance(todos, str | Mapping)
        self._todos = check_todos(list(todos) if is_list else todos)
        return self.get_todos()

    def set_todos(self, todos: object) -> None:
        """Replace the list by a recovered one; items are made valid, and nothing is refused."""
        recovered = recovered_todos(todos)
        self._todos = () if recovered is None else recovered.todos

    def clear(self) -> None:
        """Remove all of them."""
        self._todos = ()
