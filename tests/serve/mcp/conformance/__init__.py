"""Profile of the MCP conformance suite: its fixtures, added to the product's `/mcp`."""
