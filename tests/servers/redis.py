"""Redis server of the tests, on a free loopback port, without persistence."""

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
    """Server that runs until `end`. A test cannot kill a server that others share."""

    def __init__(self, *, is_shared: bool = False) -> None:
        self._is_shared = is_shared
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
        """URL of the server."""
        return f"redis://:{self._password}@127.0.0.1:{self.place.port}/0"

    def empty(self) -> None:
        """Remove all keys."""
        with socket.create_connection(("127.0.0.1", self.place.port), timeout=10) as line:
            line.sendall(f"AUTH {self._password}\r\nFLUSHALL\r\nQUIT\r\n".encode())
            said = b"".join(iter(lambda: line.recv(1024), b""))
        assert said == b"+OK\r\n" * 3, said

    def kill(self) -> None:
        """Kill it with SIGKILL; `start` brings it back empty, on the same port."""
        assert not self._is_shared, "other tests share this server: use own_redis"
        self.place = self._kept.kill()

    def start(self) -> None:
        """Start it again, empty."""
        self.place = self._kept.start()

    def end(self) -> None:
        """Stop it."""
        self._kept.end()
