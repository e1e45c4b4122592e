"""Implementations of the commands, one module per command or command group."""
