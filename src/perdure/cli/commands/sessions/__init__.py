"""`perdure sessions …`."""

from perdure.cli.commands.sessions.group import sessions

__all__ = ["sessions"]
