"""`perdure sessions …`."""

from perdure.cli.commands.sessions import changes, log, transfer
from perdure.cli.commands.sessions.group import sessions

__all__ = ["changes", "log", "sessions", "transfer"]
