"""A PostgreSQL of our own, on a free port of the loopback, with databases for the asking."""

import os
import secrets
import subprocess
from itertools import count
from pathlib import Path

from tests.servers.components import postgres_home
from tests.servers.kept import Kept, Place

USER = "perdure"


class PostgresServer:
    """Runs from the start until `end`; a password keeps other users of the machine out.

    It is as durable as any (fsync is on), so that killing it means something. `settings` are
    further lines of its configuration, such as `max_connections=20`. A `standby_of` another one
    follows it, and takes no writes until it is promoted.
    """

    def __init__(self, *settings: str, standby_of: "PostgresServer | None" = None) -> None:
        home = postgres_home()
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
            stop="SIGQUIT",  # at once, without a checkpoint: what it has is thrown away
        )
        self.place: Place = self._kept.start()

    def url(self, database: str = "postgres") -> str:
        """Where a database is."""
        return f"postgresql://{USER}:{self.password}@127.0.0.1:{self.place.port}/{database}"

    def new_database(self) -> str:
        """The URL of an empty database that nobody else has."""
        name = f"test_{next(self._numbers)}"
        self.psql(f"CREATE DATABASE {name}")
        return self.url(name)

    def psql(self, sql: str, database: str = "postgres") -> str:
        """What psql says to a statement, bare: columns parted by |."""
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
        """SIGKILL to the server itself; `start` brings it back, at the same port."""
        self.place = self._kept.kill()

    def stop(self) -> None:
        """End it at once, as for a restart; `start` brings it back, at the same port."""
        self.place = self._kept.stop()

    def start(self) -> None:
        """Bring it back."""
        self.place = self._kept.start()

    def end(self) -> None:
        """Stop it for good and remove its data."""
        self._kept.end()


def log_of(server: PostgresServer) -> str:
    """What the server has said."""
    return Path(server.place.folder, "log").read_text(errors="replace")
