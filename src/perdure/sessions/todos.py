"""The todos of one running agent: in memory only, since the session's events have every list."""

from collections.abc import Iterable
from typing import Any

from perdure.core.session.todos import Todo, check_todos, kept_todos


class TodoManager:
    """Holds the present list; an update replaces all of it."""

    def __init__(self) -> None:
        self._todos: tuple[Todo, ...] = ()

    def get_todos(self) -> list[dict[str, Any]]:
        """The present list, as a copy."""
        return [todo.to_json() for todo in self._todos]

    def update_todos(self, todos: Iterable[Any]) -> list[dict[str, Any]]:
        """Replace the list and answer it, with ids. Refused: "Invalid todo update: …"."""
        self._todos = check_todos(list(todos))
        return self.get_todos()

    def set_todos(self, todos: object) -> None:
        """Take over a recovered list; what breaks the rules is left out, and nothing is refused."""
        self._todos = kept_todos(todos) or ()

    def clear(self) -> None:
        """Forget all of them."""
        self._todos = ()
