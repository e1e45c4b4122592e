"""A server in this process with its clients, and a time limit for every test."""

from tests.support.http_client import client, client_of, rt
from tests.support.runtimes import clock, memory
from tests.support.time_limit import nothing_hangs

__all__ = ["client", "client_of", "clock", "memory", "nothing_hangs", "rt"]
