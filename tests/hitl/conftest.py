"""Fixtures for the tests of human-in-the-loop."""

from tests.support.runtimes import clock, in_memory, memory, runtime

__all__ = ["clock", "in_memory", "memory", "runtime"]
