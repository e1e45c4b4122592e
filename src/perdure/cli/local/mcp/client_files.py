"""The configuration file of a client: how it is read, changed and replaced.

A file in the folder of a project may come from somebody else. So no link is followed there, and
only a regular file of a sensible size is read. A person's own file may be a link, because many
people keep such files in a repository; it must lead to a regular file that exists.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from perdure.cli.local.mcp.clients import NAME, Entry, McpClient, UnusableFile
from perdure.errors import ConfigError, Conflict

BACKUP: Final = ".perdure-backup"
MAX_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ClientFile:
    """The configuration of a client in one scope, as it is now."""

    client: McpClient
    path: Path
    text: str
    data: dict[str, Any]
    problem: str | None = None  # why it cannot be edited

    @classmethod
    def read(cls, client: McpClient, scope: str) -> "ClientFile":
        """Read the file; one that does not exist is empty."""
        path = client.files[scope]()
        try:
            path = _checked_path(path, is_own=scope == "user")
            text = _text(path) if os.path.lexists(path) else ""
            data = client.parsed(text)
        except UnusableFile as error:
            return cls(client, path.absolute(), "", {}, str(error))
        except OSError as error:
            return cls(client, path.absolute(), "", {}, f"cannot be read: {error.strerror}")
        except ValueError:
            return cls(client, path, "", {}, "cannot be parsed")
        return cls(client, path, text, data)

    @property
    def entry(self) -> Any:
        """The present entry; None if there is none."""
        entries = self.data.get(self.client.key)
        return entries.get(NAME) if isinstance(entries, dict) else None

    def changed(self, entry: Entry | None) -> str | None:
        """Return the text with the entry, or without it; None if it cannot be edited safely."""
        if self.problem is not None:
            return None
        try:
            if entry is None:
                text = self.client.remove(self.text, self.client.path)
            else:
                text = self.client.put(self.text, self.client.path, entry)
            after = self.client.parsed(text)
        except (ValueError, KeyError):
            return None
        return text if _others(after, self.client) == _others(self.data, self.client) else None

    def write(self, text: str) -> Path | None:
        """Replace the file in one step; return the copy of what it was, if it existed.

        Raises Conflict if it was changed meanwhile, ConfigError if it cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return self._write(text)
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be written: {error.strerror}",
                code="FILE_NOT_WRITTEN",
                hint="perdure mcp install --print shows the entry, to add it by hand",
            ) from error

    def _write(self, text: str) -> Path | None:
        backup: Path | None = None
        mode = 0o600
        if os.path.lexists(self.path):
            mode = stat.S_IMODE(self.path.lstat().st_mode)
            if not self._is_unchanged():
                raise Conflict(
                    f"{self.path} was changed meanwhile",
                    code="FILE_CHANGED",
                    hint="close the client, and run the command again",
                )
            backup = self.path.with_name(self.path.name + BACKUP)
            _replace(backup, self.text, mode)
        _replace(self.path, text, mode)
        return backup

    def _is_unchanged(self) -> bool:
        try:
            return _text(self.path) == self.text
        except (OSError, ValueError):
            return False


def _checked_path(path: Path, *, is_own: bool) -> Path:
    """Return the full path to read and to replace. Raises UnusableFile, OSError."""
    if is_own:
        try:
            return path.resolve(strict=True) if path.is_symlink() else path.absolute()
        except (FileNotFoundError, RuntimeError) as error:  # a loop is a RuntimeError
            raise UnusableFile("is a link that leads to no file") from error
    for part in (path, *path.parents[:-1]):  # relative to the folder of the project
        if part.is_symlink():
            raise UnusableFile("is a link, or behind one, and is not followed in a project")
    return path.absolute()


def _text(path: Path) -> str:
    """Return the text of a regular file with the ends of its lines as they are.

    Raises UnusableFile, OSError, ValueError.
    """
    _require_regular(path.lstat())  # merely opening a device can have an effect
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        _require_regular(os.fstat(descriptor))  # it may be another file by now
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise UnusableFile(f"has more than {MAX_BYTES // 1024**2} MiB")
    return data.decode()


def _require_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UnusableFile("is not a regular file")


def _replace(path: Path, text: str, mode: int) -> None:
    """Replace a file in one step; a link in its place, as a project may have it, is replaced."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), mode)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _others(data: dict[str, Any], client: McpClient) -> dict[str, Any]:
    """Return everything except the entry; an empty table of entries is the same as none."""
    entries = data.get(client.key)
    if not isinstance(entries, dict):
        return data
    left = {name: entry for name, entry in entries.items() if name != NAME}
    others = {key: value for key, value in data.items() if key != client.key}
    return {**others, client.key: left} if left else others
