"""`perdure webhook`: sign requests, list and repeat deliveries."""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from perdure.app import Runtime, service_of, tenant_of
from perdure.cli.backend.open import load_runtime, with_runtime
from perdure.cli.settings import CONFIG, Settings, config_file
from perdure.cli.terminal.terminal import Terminal, age, line
from perdure.core.session.naming import check_id
from perdure.core.webhooks import signatures as webhooks
from perdure.errors import ConfigError, NotFound, Refused
from perdure.ids import new_id
from perdure.runtime.webhooks.deliveries import Deliveries

SECRET: Final = "PERDURE_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable


def sign(
    settings: Settings, secret: str | None, pending_id: str | None, message_id: str | None
) -> int:
    """Print the headers that sign the body on stdin."""
    key = secret if secret is not None else os.environ.get(SECRET) or _configured_secret(settings)
    if pending_id is not None:
        key = webhooks.derive_secret(key, check_id(pending_id, "pending id"))
    name = new_id("msg") if message_id is None else check_id(message_id, "message id")
    headers = webhooks.sign(sys.stdin.buffer.read(), key, name, time.time_ns() // 1_000_000)
    terminal = Terminal(settings)
    lines = "\n".join(f"{header}: {value}" for header, value in headers.items())
    terminal.print_either(headers, lambda: terminal.print_result(lines))
    return 0


def _configured_secret(settings: Settings) -> str:
    secret = None
    if settings.app is not None:
        secret = service_of(load_runtime(settings, "any")).webhook_secret
    elif (file := config_file(settings)) is not None:
        from perdure import config

        secret = config.load(Path(file)).webhook_secret
    if not secret:
        raise ConfigError(
            "no webhook secret is configured, so there is nothing to sign with",
            code="NO_WEBHOOK_SECRET",
            hint=f"set {SECRET}, or server.webhook_secret in {CONFIG}",
        )
    return secret


def list_deliveries(settings: Settings, status: str | None, session: str | None) -> int:
    """List webhook deliveries, oldest first."""

    async def main(runtime: Runtime) -> None:
        deliveries, tenant = _deliveries(runtime), tenant_of(runtime)
        matching = await deliveries.ordered(tenant, status, session)
        shown = [(await deliveries.view(delivery)).to_json() for delivery in matching]
        now, terminal = service_of(runtime).now(), Terminal(settings)
        report = {"deliveries": shown, "next": None}
        terminal.print_either(report, lambda: _print_table(terminal, shown, now))

    with_runtime(settings, main)
    return 0


def _print_table(terminal: Terminal, deliveries: Sequence[Mapping[str, Any]], now: int) -> None:
    if not deliveries:
        terminal.print("No deliveries found.")
        return
    rows = [
        (
            delivery["id"],
            delivery["type"],
            delivery["sessionID"],
            delivery["status"],
            str(delivery["attempts"]),
            "-" if delivery["nextAt"] is None else age(delivery["nextAt"] - now),
            str(delivery["lastStatus"] or delivery["lastError"] or "-"),
            delivery["target"],
        )
        for delivery in deliveries
    ]
    head = ("ID", "TYPE", "SESSION", "STATUS", "TRIES", "NEXT", "LAST", "TARGET")
    terminal.print_table(head, rows)


def show_delivery(settings: Settings, typed_id: str) -> int:
    """Show one delivery, with its body and its log."""

    async def main(runtime: Runtime) -> None:
        tenant, terminal = tenant_of(runtime), Terminal(settings)
        delivery_id = await _resolve_id(runtime, typed_id)
        shown = (await _deliveries(runtime).details(delivery_id, tenant)).to_json()
        terminal.print_either(shown, lambda: _print_delivery(terminal, shown))

    with_runtime(settings, main)
    return 0


def _print_delivery(terminal: Terminal, shown: Mapping[str, Any]) -> None:
    terminal.print(f"{shown['type']} to {shown['target']}: {shown['status']}", bold=True)
    for step in shown["log"]:
        detail = step.get("status") or step.get("error") or step.get("by") or ""
        terminal.print(f"  {step['at']}  {step['step']} {line(str(detail))}")
    terminal.print_result(json.dumps(shown["body"], ensure_ascii=False, indent=2))


def redeliver(settings: Settings, typed_id: str, by: str) -> int:
    """Make a delivery due again."""

    async def main(runtime: Runtime) -> None:
        deliveries, tenant = _deliveries(runtime), tenant_of(runtime)
        delivery_id = await _resolve_id(runtime, typed_id)
        delivery = await deliveries.redeliver(delivery_id, by=by, tenant=tenant)
        shown, terminal = (await deliveries.view(delivery)).to_json(), Terminal(settings)
        worker = settings.command("worker")
        terminal.print_either(
            shown, lambda: terminal.print(f"A worker will send {delivery.id} again: {worker}")
        )

    with_runtime(settings, main)
    return 0


def _deliveries(runtime: Runtime) -> Deliveries:
    return service_of(runtime).deliveries


async def _resolve_id(runtime: Runtime, typed_id: str) -> str:
    """Return the complete id of a delivery. Raises NotFound or Refused."""
    tenant = tenant_of(runtime)
    matching = [
        delivery.id
        for delivery in await _deliveries(runtime).ordered(tenant)
        if delivery.id.startswith(typed_id)
    ]
    if typed_id in matching or len(matching) == 1:
        return typed_id if typed_id in matching else matching[0]
    if matching:
        raise Refused(
            f"{typed_id!r} matches {len(matching)} deliveries: {', '.join(sorted(matching)[:10])}",
            code="AMBIGUOUS_ID",
            hint="type more of the id",
        )
    raise NotFound(
        f"there is no delivery {typed_id!r}", code="DELIVERY_NOT_FOUND", hint="perdure webhook list"
    )
