"""Client side of MCP: servers, connections to them, and their tools as tools of an agent."""
