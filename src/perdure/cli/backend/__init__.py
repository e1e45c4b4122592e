"""Where a command runs: a runtime in this process, or a server."""
