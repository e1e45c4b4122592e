"""The driver's decisions: what to do next, and which events to write."""
