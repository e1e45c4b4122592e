"""Model requests through pydantic-ai: request, transport, translation, failures."""
