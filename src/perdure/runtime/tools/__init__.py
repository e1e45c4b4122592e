"""Tools: the `@tool` decorator, argument binding and validation, invocation, built-in tools."""
