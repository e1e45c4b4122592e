"""`perdure db …`."""

from perdure.cli.commands.db.group import db

__all__ = ["db"]
