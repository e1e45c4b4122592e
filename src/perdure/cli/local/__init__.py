"""Work of commands on the store itself, not on the API of a runtime; it loads the runtime."""
