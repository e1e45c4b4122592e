"""`perdure mcp …`."""

from perdure.cli.commands.mcp.group import mcp

__all__ = ["mcp"]
