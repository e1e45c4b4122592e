"""World of a campaign: its settings, and the files in which its processes record what they did.

Every line is on disk before the process continues, so that no kill can take back what it says.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

FOLDER = "SOAK_FOLDER"  # variable that names the folder to the processes
Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class World:
    """Settings that all processes of a campaign share, and its folder."""

    folder: Path
    seed: str
    url: str
    ports: tuple[int, ...] = ()  # of the servers
    lease: str = "3s"
    has_sandbox: bool = False
    session_rate: float = 3.0  # new sessions per second
    fault: str = ""  # planted in all processes: see faults.py

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return the world that `save` wrote."""
        settings = json.loads((folder / "settings").read_text())
        return cls(**settings | {"folder": folder, "ports": tuple(settings["ports"])})

    def save(self) -> Self:
        """Write the settings for the other processes."""
        settings = asdict(self) | {"folder": str(self.folder)}
        (self.folder / "settings").write_text(json.dumps(settings))
        return self

    def append(self, name: str, *lines: Line) -> None:
        """Append lines to a file of the folder, and sync it.

        A kill may tear a line: a newline before each keeps it apart from the next one.
        """
        fd = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(fd, b"".join(b"\n" + json.dumps(line).encode() for line in lines))
        os.fdatasync(fd)
        os.close(fd)

    def lines(self, pattern: str) -> list[Line]:
        """Return the lines of all files of the folder that match, without torn ones."""
        files = sorted(self.folder.glob(pattern))
        lines = [line for file in files for line in file.read_text().splitlines()]
        return [json.loads(line) for line in lines if line.endswith("}")]

    @property
    def tasks(self) -> Path:
        """Folder of the tasks, with the files that commands write."""
        return self.folder / "tasks"

    @property
    def is_draining(self) -> bool:
        """True when clients only settle what is open."""
        return (self.folder / "draining").exists()
