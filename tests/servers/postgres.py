"""PostgreSQL server of the tests, on a free loopback port, with new databases on request."""

import os
import secrets
import subprocess
from itertools import count
from pathlib import Path

from tests.servers.components import postgres_home
from tests.servers.kept import Kept, Place

USER = "perdure"


class PostgresServer:
    """Server that runs until `end`; a password keeps other users of the machine out.

    It is durable (fsync is on), so that killing it proves something. `settings` are further lines
    of its configuration, such as `max_connections=20`. A `standby_of` another server follows it,
    and rejects writes until it is promoted. A test cannot stop a server that others share.
    """

    def __init__(
        self,
        *settings: str,
        standby_of: "PostgresServer | None" = None,
        is_shared: bool = False,
    ) -> None:
        home = postgres_home()
        self._is_shared = is_shared
        self.password: str = standby_of.password if standby_of else secrets.token_hex(16)
        self._psql = str(home / "psql")
        self._numbers = count(1)
        options = [f"--{setting}" for setting in ("max_connections=200", *settings)]
        data = "{folder}/data"
        made = [
            *(str(home / "initdb"), "-D", data, "--username", USER, "--no-sync"),
            *("--encoding", "UTF8", "--locale", "C", "--auth", "scram-sha-256"),
            *("--pwfile", "{folder}/password"),
        ]
        if standby_of:
            made = [
                *(str(home / "pg_basebackup"), "-d", standby_of.url(), "-D", data),
                *("--write-recovery-conf", "--checkpoint=fast", "--no-sync"),
            ]
        self._kept = Kept(
            "postgres",
            [
                *(str(home / "postgres"), "-D", data, "-p", "{port}", "-k", "{folder}"),
                *("-h", "127.0.0.1", *options),
            ],
            prepare=(made,),
            files={"password": self.password},
            ready=(str(home / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", "{port}"),
            stop="SIGQUIT",  # immediate, without a checkpoint: its data is thrown away
        )
        self.place: Place = self._kept.start()

    def url(self, database: str = "postgres") -> str:
        """Return the URL of a database."""
        return f"postgresql://{USER}:{self.password}@127.0.0.1:{self.place.port}/{database}"

    def new_database(self) -> str:
        """Return the URL of a new, empty database."""
        name = f"test_{next(self._numbers)}"
        self.psql(f"CREATE DATABASE {name}")
        return self.url(name)

    def psql(self, sql: str, database: str = "postgres") -> str:
        """Return the output of psql for a statement, with columns separated by |."""
        place = ("-h", "127.0.0.1", "-p", str(self.place.port), "-U", USER, "-d", database)
        asked = subprocess.run(
            [self._psql, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", *place, "-c", sql],
            env={**os.environ, "PGPASSWORD": self.password},
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.returncode:
            raise RuntimeError(f"psql: {asked.stderr.strip()}")
        return asked.stdout.strip()

    def kill(self) -> None:
        """Kill the server with SIGKILL; `start` brings it back on the same port."""
        self._check_own()
        self.place = self._kept.kill()

    def stop(self) -> None:
        """Stop it at once, as for a restart; `start` brings it back on the same port."""
        self._check_own()
        self.place = self._kept.stop()

    def start(self) -> None:
        """Start it again."""
        self.place = self._kept.start()

    def end(self) -> None:
        """Stop it and remove its data."""
        self._kept.end()

    def _check_own(self) -> None:
        assert not self._is_shared, "other tests share this server: use own_postgres"


def log_of(server: PostgresServer) -> str:
    """Return the server's log."""
    return Path(server.place.folder, "log").read_text(errors="replace")
