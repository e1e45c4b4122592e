"""Checkpoints of tasks: workspaces as objects by content, taken, listed, restored and moved."""
