"""Actions of `perdure mcp`: serve on stdio, and set up MCP clients."""
