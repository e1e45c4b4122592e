"""A durable runtime for AI agents."""
