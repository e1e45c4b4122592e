"""Signing a body on the command line, as whoever calls back must."""

import os
import sys
import time
from pathlib import Path
from typing import Final

from holdfast.app import service_of
from holdfast.cli.opening import CONFIG, runtime_of
from holdfast.cli.settings import Settings
from holdfast.cli.terminal import Terminal
from holdfast.core.session.naming import check_id
from holdfast.core.webhooks import signatures as webhooks
from holdfast.errors import ConfigError
from holdfast.runtime.ids import new_id

SECRET: Final = "HOLDFAST_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable


def sign(
    settings: Settings, secret: str | None, pending_id: str | None, message_id: str | None
) -> int:
    """Print the headers for what stands on stdin."""
    key = secret if secret is not None else os.environ.get(SECRET) or _configured(settings)
    if pending_id is not None:
        key = webhooks.derive(key, check_id(pending_id, "pending id"))
    name = new_id("msg") if message_id is None else check_id(message_id, "message id")
    headers = webhooks.sign(sys.stdin.buffer.read(), key, name, time.time_ns() // 1_000_000)
    terminal = Terminal(settings)
    lines = "\n".join(f"{header}: {value}" for header, value in headers.items())
    terminal.either(headers, lambda: terminal.result(lines))
    return 0


def _configured(settings: Settings) -> str:
    found = None
    if settings.app is not None:
        found = service_of(runtime_of(settings, "any")).desk.webhook_secret
    elif settings.config is not None or Path(CONFIG).exists():
        from holdfast import config

        found = config.load(Path(settings.config or CONFIG)).webhook_secret
    if not found:
        raise ConfigError(
            "there is no secret to sign with",
            code="NO_WEBHOOK_SECRET",
            hint=f"set {SECRET}, or server.webhook_secret in {CONFIG}",
        )
    return found
