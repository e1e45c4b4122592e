"""Server programs on this machine: where they are, and whom they run as."""

import os
import pwd
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

# Where packagers put PostgreSQL's programs, of which only the clients are on the path.
_POSTGRES_HOMES = (
    "/usr/lib/postgresql/*/bin",  # Debian
    "/usr/pgsql-*/bin",  # Red Hat
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
)


class Missing(Exception):
    """A server that is not installed; its tests are skipped, loudly."""

    def __init__(self, component: str, package: str) -> None:
        super().__init__(f"{component} is not installed (Debian: {package})")


@dataclass(frozen=True, slots=True)
class User:
    """Whom a server runs as; nothing is set where it is ourselves."""

    uid: int | None = None
    gid: int | None = None

    @property
    def popen(self) -> dict[str, int | list[int]]:
        """As arguments of Popen."""
        if self.uid is None or self.gid is None:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def unprivileged() -> User:
    """Ourselves, unless we are root: PostgreSQL and pgbouncer refuse to run as root."""
    if os.geteuid() != 0:
        return User()
    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return User(found.pw_uid, found.pw_gid)
    raise Missing("a user who is not root", "base-passwd")


def program(name: str, package: str) -> str:
    """A program on the path, or where only root has its path. Missing."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")
    if found is None:
        raise Missing(name, package)
    return found


def postgres_home() -> Path:
    """The folder of PostgreSQL's programs, the newest of several. Missing."""
    homes = [path for pattern in _POSTGRES_HOMES for path in Path("/").glob(pattern[1:])]
    on_path = shutil.which("initdb")
    if on_path is not None:
        homes.append(Path(on_path).resolve().parent)
    whole = [home for home in homes if (home / "initdb").exists() and (home / "postgres").exists()]
    if not whole:
        raise Missing("postgresql", "postgresql")
    return max(whole, key=_version)


def _version(home: Path) -> int:
    number = re.search(r"(\d+)", str(home))
    return int(number[1]) if number else 0
