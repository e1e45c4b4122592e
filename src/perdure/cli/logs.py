"""Logs of a command on stderr, one line per record."""

import logging
import sys

from perdure.cli.settings import Settings
from perdure.cli.terminal.status_line import STATUS
from perdure.cli.terminal.terminal import clean


class _OneLine(logging.Formatter):
    """Formatter of lines such as `12:00:01 info  text`, without terminal control characters."""

    def format(self, record: logging.LogRecord) -> str:
        STATUS.erase()
        head = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower():<7} "
        text = clean(record.getMessage())
        if record.exc_info:
            text = f"{text}\n{clean(self.formatException(record.exc_info))}"
        return head + text


def _is_not_retry(record: logging.LogRecord) -> bool:
    return getattr(record, "perdure_event", None) != "retry"


def log_to_stderr(settings: Settings, level: int, *, with_retries: bool = True) -> None:
    """Write all logs of a command to stderr, one line per record."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine())
    if not with_retries:
        handler.addFilter(_is_not_retry)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    chosen = logging.ERROR if settings.quiet else level
    logging.getLogger("perdure").setLevel(logging.DEBUG if settings.verbose else chosen)
