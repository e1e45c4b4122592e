"""Loopback ports for the servers that tests start."""

import socket
import sys
from typing import Final

_held: Final[list[socket.socket]] = []


def free_port() -> int:
    """Return a free port that no other process gets while the tests run.

    On Linux this process stays bound to it without listening: the kernel then does not assign it,
    refuses connections, and lets a server with SO_REUSEADDR listen there repeatedly. On other
    systems another process may take the port.
    """
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", 0))
    port: int = one.getsockname()[1]
    if sys.platform == "linux":
        _held.append(one)
    else:
        one.close()
    return port
