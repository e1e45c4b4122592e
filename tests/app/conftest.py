"""Fixtures for the tests of the Runtime."""

from tests.support.runtimes import clock, in_memory, memory, runtime

__all__ = ["clock", "in_memory", "memory", "runtime"]
