"""Session logs in a plain format: `{base}/{session}/events.jsonl`, one JSON object per line."""

import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from perdure.store.files.layout import LOG
from perdure.store.shared.line_files import append_lines, read_lines
from perdure.store.shared.names import id_from_name, reversible_name

logger = logging.getLogger("perdure")


class SessionLogs:
    """Logs in one folder; several processes may append complete lines to them."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def path(self, session_id: str) -> Path:
        """Return the log of a session. Raises Refused if its id cannot be a folder name."""
        return self.base / reversible_name(session_id) / LOG

    def add(self, session_id: str, event: Any) -> None:
        """Append an event, which must be JSON, durably."""
        text = json.dumps(event, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        append_lines(self.path(session_id), [text.encode()], sync=True)

    def read(self, session_id: str) -> list[Any]:
        """Return every event, oldest first; unreadable lines are logged and skipped."""
        path = self.path(session_id)
        events = []
        for number, (_, line) in enumerate(read_lines(path), 1):
            try:
                events.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                logger.warning("%s: line %d is skipped: %s", path, number, error)
        return events

    def has_events(self, session_id: str) -> bool:
        """Return whether the session has at least one event."""
        return any(_is_json(line) for _, line in read_lines(self.path(session_id)))

    def delete(self, session_id: str) -> None:
        """Delete a log if it exists."""
        path = self.path(session_id)
        path.unlink(missing_ok=True)
        with suppress(OSError):  # the folder has other files, or is missing
            path.parent.rmdir()

    def ids(self) -> list[str]:
        """Return the ids of the sessions that have a log."""
        names = sorted(path.parent.name for path in self.base.glob(f"*/{LOG}"))
        ids = (id_from_name(name) for name in names)
        return [session_id for session_id in ids if session_id is not None]


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
