"""The MCP server: tools, tasks and resources for MCP clients, over stdio and HTTP."""
