"""Read-only paths: toolchains of the host that commands see, resolved and checked once."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

WORKSPACE: Final = "/workspace"  # the same path in every sandbox that has its own file tree
# Folders that a toolchain is never in, and that would open a way out. A socket can be used through
# a read-only mount.
CLOSED: Final = ("/proc", "/sys", "/dev", "/run", "/var/run", WORKSPACE)


@dataclass(frozen=True, slots=True)
class ReadOnlyPath:
    """A folder or file of the host, and where a command sees it."""

    source: Path
    target: Path


def resolve_ro_paths(
    paths: Iterable[str | os.PathLike[str]], closed: Iterable[Path] = ()
) -> tuple[ReadOnlyPath, ...]:
    """Resolve read-only paths once. Raises ValueError with a text that names the path.

    A path must not lead into one of the `closed` folders (the store, the workspaces), contain one
    of them, or be a folder with devices, processes or sockets.
    """
    forbidden = [*map(Path, CLOSED), *(path.resolve() for path in closed)]
    return tuple(_resolve(Path(path), forbidden) for path in paths)


def _resolve(path: Path, forbidden: Sequence[Path]) -> ReadOnlyPath:
    if not path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{path} must be an absolute path without ..")
    try:
        source = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise ValueError(f"{path} does not exist") from None
    if not (source.is_dir() or source.is_file()):
        raise ValueError(f"{path} is neither a folder nor a file")
    for folder in forbidden:
        for place in (source, path):
            if place.is_relative_to(folder) or folder.is_relative_to(place):
                raise ValueError(f"{path} leads into {folder}, which commands must not see")
    return ReadOnlyPath(source, path)
