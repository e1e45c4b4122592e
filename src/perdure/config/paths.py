"""Paths in a configuration: relative to its file, never to the current directory."""

import os
from dataclasses import dataclass
from pathlib import Path

from perdure.config.problems import InvalidValue


@dataclass(frozen=True, slots=True)
class ConfigFolder:
    """Directory of the configuration file."""

    path: Path

    def resolve(self, text: str) -> Path:
        """Return the absolute path that a text names; `~` is the home directory."""
        try:
            path = Path(text).expanduser()
        except RuntimeError as error:
            raise InvalidValue("there is no such home directory") from error
        # Only the text is normalized: a symbolic link stays one, as for every other program.
        return Path(os.path.normpath(self.path / path))

    def existing_file(self, text: str) -> Path:
        """Return the absolute path of a file that must exist."""
        path = self.resolve(text)
        if not path.is_file():
            raise InvalidValue(f"{path} {'is not a file' if path.exists() else 'does not exist'}")
        return path

    def read_text(self, name: str) -> str:
        """Return the content of a file."""
        path = self.existing_file(name)
        try:
            return path.read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = "is not UTF-8" if isinstance(error, ValueError) else f"{error.strerror}"
            raise InvalidValue(f"{path} cannot be read: {reason}") from error
