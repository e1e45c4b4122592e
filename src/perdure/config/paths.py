"""Paths in a configuration: relative to its file, never to where one happens to be."""

import os
from dataclasses import dataclass
from pathlib import Path

from perdure.config.kinds import Wrong


@dataclass(frozen=True, slots=True)
class Folder:
    """The directory of the configuration."""

    path: Path

    def place(self, text: str) -> Path:
        """The absolute path that a text means; `~` is the home directory."""
        try:
            meant = Path(text).expanduser()
        except RuntimeError as error:
            raise Wrong("there is no such home directory") from error
        # Only the text is tidied: a link stays a link, as for every other program.
        return Path(os.path.normpath(self.path / meant))

    def file(self, text: str) -> Path:
        """The same, for a file that must be there."""
        place = self.place(text)
        if not place.is_file():
            why = "is not a file" if place.exists() else "does not exist"
            raise Wrong(f"{place} {why}")
        return place

    def text(self, name: str) -> str:
        """What a file says."""
        place = self.file(name)
        try:
            return place.read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            why = "is not UTF-8" if isinstance(error, ValueError) else f"{error.strerror}"
            raise Wrong(f"{place} cannot be read: {why}") from error
