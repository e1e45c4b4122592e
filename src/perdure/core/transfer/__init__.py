"""Logs created from other logs: forks, salvage, and sessions written by other programs."""
