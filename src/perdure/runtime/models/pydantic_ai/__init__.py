"""Model requests through pydantic-ai and the libraries of providers."""
