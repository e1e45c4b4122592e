"""Tools from MCP servers: which, what they look like here, and the way to call them."""
