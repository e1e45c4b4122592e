"""Execution states: what a paused run is, from its log, as a value that can be restored."""
