"""Decisions of a driver: its next effect, verdicts on calls, and the events it writes."""
