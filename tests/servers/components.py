"""Server programs on this machine: their paths, and the users they run as."""

import os
import pwd
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

# Folders of PostgreSQL's programs in distributions; only the clients are on the path.
_POSTGRES_HOMES = (
    "/usr/lib/postgresql/*/bin",  # Debian
    "/usr/pgsql-*/bin",  # Red Hat
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
)


class Missing(Exception):
    """A server is not installed; its tests are skipped, with a line at the end of the run."""

    def __init__(self, component: str, package: str) -> None:
        super().__init__(f"{component} is not installed (Debian: {package})")


@dataclass(frozen=True, slots=True)
class User:
    """User that a server runs as; empty for the current user."""

    uid: int | None = None
    gid: int | None = None

    @property
    def popen(self) -> dict[str, int | list[int]]:
        """Return the arguments of Popen."""
        if self.uid is None or self.gid is None:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def unprivileged() -> User:
    """Return the current user, or another one if that is root, as which servers refuse to run."""
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
    """Return a program on the path, or on root's path. Raises Missing."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")
    if found is None:
        raise Missing(name, package)
    return found


def postgres_home() -> Path:
    """Return the folder of the newest PostgreSQL's programs. Raises Missing."""
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
