"""Commands about what is told to others."""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from perdure.app import Runtime, service_of, tenant_of
from perdure.cli.open import CONFIG, opened, runtime_of
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, age, line
from perdure.core.session.naming import check_id
from perdure.core.webhooks import signatures as webhooks
from perdure.errors import ConfigError, NotFound, Refused
from perdure.runtime.ids import new_id
from perdure.runtime.webhooks.deliveries import Deliveries

SECRET: Final = "PERDURE_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable


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
        from perdure import config

        found = config.load(Path(settings.config or CONFIG)).webhook_secret
    if not found:
        raise ConfigError(
            "there is no secret to sign with",
            code="NO_WEBHOOK_SECRET",
            hint=f"set {SECRET}, or server.webhook_secret in {CONFIG}",
        )
    return found


def list_deliveries(settings: Settings, status: str | None, session: str | None) -> int:
    """The deliveries that are kept, oldest first."""

    async def main(runtime: Runtime) -> None:
        door, tenant = _door(runtime), tenant_of(runtime)
        found = [one async for one in door.all(tenant, status=status, session_id=session)]
        found.sort(key=lambda one: (one.created_at, one.id))
        shown = [await door.show(one) for one in found]
        now, terminal = service_of(runtime).desk.store.now(), Terminal(settings)
        listed = {"deliveries": shown, "next": None}
        terminal.either(listed, lambda: _table(terminal, shown, now))

    opened(settings, main)
    return 0


def _table(terminal: Terminal, shown: Sequence[Mapping[str, Any]], now: int) -> None:
    if not shown:
        terminal.say("nothing was told to anybody")
        return
    rows = [
        (
            one["id"],
            one["type"],
            one["sessionID"],
            one["status"],
            str(one["attempts"]),
            "-" if one["nextAt"] is None else age(one["nextAt"] - now),
            str(one["lastStatus"] or one["lastError"] or "-"),
            one["target"],
        )
        for one in shown
    ]
    head = ("ID", "TYPE", "SESSION", "STATUS", "TRIES", "NEXT", "LAST", "TARGET")
    terminal.table(head, rows)


def show_delivery(settings: Settings, given: str) -> int:
    """One delivery, with its body and its log."""

    async def main(runtime: Runtime) -> None:
        tenant, terminal = tenant_of(runtime), Terminal(settings)
        shown = await _door(runtime).details(await _meant(runtime, given), tenant)
        terminal.either(shown, lambda: _one(terminal, shown))

    opened(settings, main)
    return 0


def _one(terminal: Terminal, shown: Mapping[str, Any]) -> None:
    terminal.say(f"{shown['type']} to {shown['target']}: {shown['status']}", bold=True)
    for step in shown["log"]:
        met = step.get("status") or step.get("error") or step.get("by") or ""
        terminal.say(f"  {step['at']}  {step['step']} {line(str(met))}")
    terminal.result(json.dumps(shown["body"], ensure_ascii=False, indent=2))


def redeliver(settings: Settings, given: str, by: str) -> int:
    """Ask for a delivery again."""

    async def main(runtime: Runtime) -> None:
        door, tenant = _door(runtime), tenant_of(runtime)
        meant = await _meant(runtime, given)
        again = await door.redeliver(meant, by=by, tenant=tenant)
        shown, terminal = await door.show(again), Terminal(settings)
        worker = settings.command("worker")
        terminal.either(shown, lambda: terminal.say(f"{again.id} goes out again with {worker}"))

    opened(settings, main)
    return 0


def _door(runtime: Runtime) -> Deliveries:
    return Deliveries(service_of(runtime).desk.outbox)


async def _meant(runtime: Runtime, given: str) -> str:
    """The id, or the one that begins like it."""
    tenant = tenant_of(runtime)
    found = [one.id async for one in _door(runtime).all(tenant) if one.id.startswith(given)]
    if given in found or len(found) == 1:
        return given if given in found else found[0]
    if found:
        raise Refused(f"{given!r} may be {', '.join(sorted(found)[:10])}", code="AMBIGUOUS_ID")
    raise NotFound(
        f"there is no delivery {given!r}", code="DELIVERY_NOT_FOUND", hint="perdure webhook list"
    )
