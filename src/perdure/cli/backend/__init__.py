"""Backends of the commands: a runtime in this process, or a server."""
