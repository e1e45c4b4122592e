"""A Redis of our own, on a free port of the loopback, that keeps nothing on disk."""

import secrets
import socket

from tests.servers.components import program
from tests.servers.kept import Kept, Place

_CONF = """\
bind 127.0.0.1
port {port}
requirepass {password}
save ""
appendonly no
"""


class RedisServer:
    """Runs from the start until `end`."""

    def __init__(self) -> None:
        self._password = secrets.token_hex(16)
        self._kept = Kept(
            "redis",
            [program("redis-server", "redis-server"), "{folder}/redis.conf"],
            files={"redis.conf": _CONF.replace("{password}", self._password)},
            stop="SIGTERM",
        )
        self.place: Place = self._kept.start()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"redis://:{self._password}@127.0.0.1:{self.place.port}/0"

    def empty(self) -> None:
        """Forget everything."""
        with socket.create_connection(("127.0.0.1", self.place.port), timeout=10) as line:
            line.sendall(f"AUTH {self._password}\r\nFLUSHALL\r\nQUIT\r\n".encode())
            said = b"".join(iter(lambda: line.recv(1024), b""))
        assert said == b"+OK\r\n" * 3, said

    def kill(self) -> None:
        """SIGKILL; `start` brings an empty one back, at the same port."""
        self.place = self._kept.kill()

    def start(self) -> None:
        """Bring it back, empty."""
        self.place = self._kept.start()

    def end(self) -> None:
        """Stop it for good."""
        self._kept.end()
