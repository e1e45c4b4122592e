"""Calls that wait for work, and what they ask the person at the client meanwhile."""
