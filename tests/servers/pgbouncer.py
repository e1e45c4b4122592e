"""pgbouncer of the tests in front of their PostgreSQL, in transaction mode."""

from tests.servers.components import program
from tests.servers.kept import Kept
from tests.servers.postgres import USER, PostgresServer

# Defaults otherwise: what works here works for users who only set the mode.
_INI = """\
[databases]
* = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 10
"""


class Pgbouncer:
    """pgbouncer that runs until `end`; every database of the server is reachable through it.

    `settings` are further lines of its configuration.
    """

    def __init__(self, server: PostgresServer, *settings: str) -> None:
        self._password = server.password
        self._kept = Kept(
            "pgbouncer",
            [program("pgbouncer", "pgbouncer"), "{folder}/pgbouncer.ini"],
            files={
                "pgbouncer.ini": "\n".join(
                    [_INI.replace("{server}", str(server.place.port)), *settings, ""]
                ),
                "users": f'"{USER}" "{server.password}"\n',
            },
            stop="SIGKILL",  # it has no data to lose, and newer versions wait for their clients
        )
        self._port = self._kept.start().port

    def url(self, database: str) -> str:
        """Return the URL of a database through the pooler."""
        return f"postgresql://{USER}:{self._password}@127.0.0.1:{self._port}/{database}"

    def through(self, url: str) -> str:
        """Return the URL, through the pooler, of the database that a URL of the server names."""
        return self.url(url.rpartition("/")[2])

    def end(self) -> None:
        """Stop it."""
        self._kept.end()
