"""Pieces of answers while they come: to whoever listens in this process, and to nobody else."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.runtime.models.base import Delta

Listener = Callable[[Delta], None]


class Bus:
    """Deltas by session; not durable, and lost where nobody listens."""

    def __init__(self) -> None:
        self._listeners: dict[tuple[str, str], list[Listener]] = {}

    def publish(self, tenant: str, delta: Delta) -> None:
        """Hand a piece to those who listen now."""
        for listener in self._listeners.get((tenant, delta.session_id), ()):
            listener(delta)

    @contextmanager
    def listening(self, tenant: str, session_id: str, listener: Listener) -> Iterator[None]:
        """Listen to one session."""
        key = (tenant, session_id)
        self._listeners.setdefault(key, []).append(listener)
        try:
            yield
        finally:
            self._listeners[key].remove(listener)
            if not self._listeners[key]:
                del self._listeners[key]
