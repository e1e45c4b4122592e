"""The tools that MCP clients see, one module per noun, and the catalog of a server."""
