"""Commands that a diagnosis names, complete with the options that reach the same store."""

import shlex
from typing import Protocol

from perdure.core.session.queues import DEFAULT


class Commands(Protocol):
    """Command lines that work on the same database, complete with its options."""

    @property
    def has_code(self) -> bool:
        """Report whether the options name agents."""
        ...

    def command(self, *words: str) -> str:
        """Return a command."""
        ...

    def worker_command(self, agent: str, queue: str = DEFAULT) -> str:
        """Return the command that starts a worker with this agent for this queue."""
        ...


class PlainCommands:
    """Command lines without options: the reader knows which store they are for."""

    has_code = False

    def command(self, *words: str) -> str:
        """Return a command."""
        return shlex.join(("perdure", *words))

    def worker_command(self, agent: str, queue: str = DEFAULT) -> str:
        """Return the command that starts a worker with this agent for this queue."""
        option = "" if queue == DEFAULT else f" --queue {shlex.quote(queue)}"
        return f"perdure worker{option}, where {agent!r} is defined"
