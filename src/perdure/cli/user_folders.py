"""Folders of the person's own files, which the XDG variables name."""

import os
from pathlib import Path
from typing import Final

CONFIG_HOME: Final = ("XDG_CONFIG_HOME", "~/.config")
DATA_HOME: Final = ("XDG_DATA_HOME", "~/.local/share")
STATE_HOME: Final = ("XDG_STATE_HOME", "~/.local/state")


def user_folder(home: tuple[str, str]) -> Path:
    """Return perdure's folder below one of the homes.

    A relative value is ignored, as the XDG specification says: it would lead into whichever
    folder a command is started in.
    """
    variable, default = home
    named = Path(os.environ.get(variable, ""))
    return (named if named.is_absolute() else Path(default).expanduser()) / "perdure"
