"""`perdure pending …`, and the short forms `perdure approve` and `perdure deny`."""

from perdure.cli.commands.pending import settlement
from perdure.cli.commands.pending.decisions import approve, deny
from perdure.cli.commands.pending.group import pending

__all__ = ["approve", "deny", "pending", "settlement"]
