"""Ports of the loopback for the servers that the tests start themselves."""

import socket
import sys
from typing import Final

_held: Final[list[socket.socket]] = []


def free_port() -> int:
    """A port that nobody has, and that nobody else is given while the tests run.

    On Linux we stay bound to it without listening: the kernel then gives it to nobody who asks for
    any port, refuses who connects, and lets a server that may reuse addresses listen there, again
    and again. Elsewhere we can only hope that nobody takes it meanwhile.
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
