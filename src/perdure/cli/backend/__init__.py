"""Access of a command to what it works on: a runtime in this process, or a server."""
