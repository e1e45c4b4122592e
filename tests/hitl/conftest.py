"""Runtimes for the tests of human-in-the-loop."""

from tests.runtime.conftest import clock, in_memory, memory, runtime

__all__ = ["clock", "in_memory", "memory", "runtime"]
