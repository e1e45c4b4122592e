"""The session that this terminal used last, so that @last does not mean a colleague's call.

It is a hint in the user's state directory: missing or unreadable, it does no harm.
"""

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from perdure.cli.settings import Settings
from perdure.cli.user_folders import STATE_HOME, user_folder

KEPT_S: Final = 30 * 86_400


def remember_session(settings: Settings, session_id: str) -> None:
    """Record that this terminal used the session last; without a terminal, do nothing."""
    file = _file()
    if file is None:
        return
    with suppress(OSError, ValueError):
        sessions = {**_read(file), _target(settings): session_id}
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(sessions), "utf-8")
        temporary.replace(file)
        _remove_old(file.parent)


def recent_session(settings: Settings) -> str | None:
    """Return the session that this terminal used last on this store or server, if it is known."""
    file = _file()
    session_id = None if file is None else _read(file).get(_target(settings))
    return session_id if isinstance(session_id, str) else None


def _file() -> Path | None:
    """Return the file of this terminal; a window and its login session together are one."""
    with suppress(OSError, ValueError, AttributeError):
        terminal = os.ttyname(sys.stdin.fileno()).strip("/").replace("/", "-")
        return user_folder(STATE_HOME) / "terminals" / f"{terminal}-{os.getsid(0)}.json"
    return None


def _remove_old(folder: Path) -> None:
    """Remove the files of terminals that were closed long ago."""
    for other in folder.iterdir():
        if other.stat().st_mtime < time.time() - KEPT_S:
            other.unlink(missing_ok=True)


def _read(file: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        sessions = json.loads(file.read_text("utf-8"))
        if isinstance(sessions, dict):
            return sessions
    return {}


def _target(settings: Settings) -> str:
    """Return what names the store: the same options mean another one in another directory."""
    if settings.server is not None:
        return f"{settings.server} {settings.tenant or ''}"
    words = (str(Path.cwd()), settings.config, settings.app, settings.store, settings.tenant)
    return " ".join(word or "" for word in words)
