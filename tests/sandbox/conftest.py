"""Fixtures of the tests of sandboxes."""

from tests.support.sandboxes import workspace

__all__ = ["workspace"]
