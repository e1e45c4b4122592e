"""Session logs as anybody writes them: `{base}/{session}/events.jsonl`, an object per line."""

import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from perdure.store.files.layout import LOG
from perdure.store.shared.line_files import append, lines_in
from perdure.store.shared.names import id_of, reversible_name

logger = logging.getLogger("perdure")


class SessionLogs:
    """The logs in one folder. Several processes may write them: whole lines, in turn."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def path(self, session_id: str) -> Path:
        """The log of a session. Refused if no folder can have its name."""
        return self.base / reversible_name(session_id) / LOG

    def add(self, session_id: str, event: Any) -> None:
        """Add an event, which must be JSON; once this returns it is on the disk."""
        text = json.dumps(event, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        append(self.path(session_id), [text.encode()], sync=True)

    def read(self, session_id: str) -> list[Any]:
        """Every event, oldest first; a line that cannot be read is told to the log and skipped."""
        path = self.path(session_id)
        found = []
        for number, (_, line) in enumerate(lines_in(path), 1):
            try:
                found.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                logger.warning("%s: line %d is skipped: %s", path, number, error)
        return found

    def exists(self, session_id: str) -> bool:
        """Whether there is at least one line of it."""
        return any(True for _ in lines_in(self.path(session_id)))

    def delete(self, session_id: str) -> None:
        """Remove a log; one that is not there is not missed."""
        path = self.path(session_id)
        path.unlink(missing_ok=True)
        with suppress(OSError):  # somebody's files are in the folder, or there is none
            path.parent.rmdir()

    def ids(self) -> list[str]:
        """The sessions that have a log."""
        names = sorted(path.parent.name for path in self.base.glob(f"*/{LOG}"))
        return [found for name in names if (found := id_of(name)) is not None]
