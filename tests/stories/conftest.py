"""Fixtures for stories, and a time limit for each."""

from tests.support.runtimes import clock, in_memory, memory, runtime
from tests.support.time_limit import nothing_hangs

__all__ = ["clock", "in_memory", "memory", "nothing_hangs", "runtime"]
