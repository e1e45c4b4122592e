"""Secrets of servers in what libraries log of their own accord: addresses, and errors with them."""

import logging
from collections.abc import Iterable
from typing import Final

from holdfast.runtime.mcp.stderr import hidden

_WHO_LOGS: Final = ("httpx2", "mcp.client.streamable_http")


class _Hiding(logging.Filter):
    """Lets every record pass, without the secrets that it knows."""

    def __init__(self) -> None:
        super().__init__()
        self.secrets: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        secrets = tuple(self.secrets)
        said = record.getMessage()
        shown = hidden(said, secrets)
        if shown != said:
            record.msg, record.args = shown, ()
        if record.exc_info and record.exc_text is None:
            told = logging.Formatter().formatException(record.exc_info)
            record.exc_text = hidden(told, secrets)  # which a formatter takes as it is
        return True


_hiding: Final = _Hiding()


def hide_in_logs(secrets: Iterable[str]) -> None:
    """Let nothing of these be seen in the log of who talks to a server by HTTP."""
    _hiding.secrets.update(secrets)
    for name in _WHO_LOGS:
        logging.getLogger(name).addFilter(_hiding)  # once, however often
