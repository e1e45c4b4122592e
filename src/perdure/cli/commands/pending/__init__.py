"""`perdure pending …`, and the short forms `perdure approve` and `perdure deny`."""

from perdure.cli.commands.pending.group import pending

__all__ = ["pending"]
