"""Sandboxes: programs confined by the kernel, their limits and how they are stopped."""
