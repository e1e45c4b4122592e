"""Tools from MCP servers, in Python.

`mcp.MCPServer("github", command=[…])` is a server; `mcp.github` are the tools of the one of that
name that the runtime knows, from its configuration or `Runtime(mcp_servers=)`.
"""

from perdure.runtime.mcp.servers import MCPServer, MCPTools

__all__ = ["MCPServer", "MCPTools"]


def __getattr__(name: str) -> MCPTools:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return MCPTools(name)
