"""The runtime over HTTP, one protocol per module."""
