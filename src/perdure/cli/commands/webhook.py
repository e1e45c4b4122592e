"""`perdure webhook`: sign requests, list and repeat deliveries."""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from perdure.cli.backend.console import Console, store_command
from perdure.cli.settings import (
    CONFIG,
    Settings,
    config_file,
    login_name,
    shared_options,
    with_settings,
)
from perdure.cli.terminal.terminal import Terminal, age, line
from perdure.errors import ConfigError, NotFound, Refused

if TYPE_CHECKING:
    from perdure.app import Runtime
    from perdure.runtime.webhooks.deliveries import Deliveries

SECRET: Final = "PERDURE_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable


@click.group()
@shared_options
def webhook() -> None:
    """Sign requests, and inspect webhook deliveries."""


@webhook.command()
@click.option(
    "--secret",
    metavar="SECRET",
    help="Sign with this secret. Other users of this machine can see it; prefer the variable.",
)
@click.option("--pending", metavar="ID", help="Sign with the secret of this pending call.")
@click.option("--id", "message_id", metavar="ID", help="Id of the message.  [default: a new id]")
@with_settings
def sign(
    settings: Settings, secret: str | None, pending: str | None, message_id: str | None
) -> int:
    """Print the headers that sign the body on stdin.

    The secret is taken from --secret, from PERDURE_WEBHOOK_SECRET, or from the configuration, in
    this order. With --pending, the secret of that call is derived from it. The output contains
    both kinds of signature headers, one per line, as curl reads them:

    perdure webhook sign --pending ID < body.json > headers

    curl -H @headers -H 'Content-Type: application/json' --data-binary @body.json URL
    """
    from perdure.core.session.naming import check_id
    from perdure.core.webhooks import signatures
    from perdure.ids import new_id

    key = secret if secret is not None else os.environ.get(SECRET) or _configured_secret(settings)
    if pending is not None:
        key = signatures.derive_secret(key, check_id(pending, "pending id"))
    name = new_id("msg") if message_id is None else check_id(message_id, "message id")
    headers = signatures.sign(sys.stdin.buffer.read(), key, name, time.time_ns() // 1_000_000)
    lines = "\n".join(f"{header}: {value}" for header, value in headers.items())
    terminal = Terminal(settings)
    terminal.print_either(headers, lambda: terminal.print_result(lines))
    return 0


def _configured_secret(settings: Settings) -> str:
    secret = None
    if settings.app is not None:
        from perdure.app import service_of
        from perdure.cli.backend.open import load_runtime

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


@webhook.command(name="list")
@click.option(
    "--status",
    type=click.Choice(["waiting", "delivered", "dead", "withdrawn"]),
    help="List only deliveries with this status.",
)
@click.option("--session", metavar="ID", help="List only deliveries of this session.")
@store_command
async def list_(
    console: Console, runtime: "Runtime", status: str | None, session: str | None
) -> None:
    """List webhook deliveries, oldest first."""
    deliveries, tenant = _deliveries(runtime)
    matching = await deliveries.ordered(tenant, status, session)
    shown = [(await deliveries.view(delivery)).to_json() for delivery in matching]
    report = {"deliveries": shown, "next": None}
    console.print_either(report, lambda: _print_table(console, shown, console.now()))


def _deliveries(runtime: "Runtime") -> "tuple[Deliveries, str | None]":
    """Return the deliveries of a runtime, and the tenant that it is scoped to."""
    from perdure.app import service_of, tenant_of

    return service_of(runtime).deliveries, tenant_of(runtime)


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


@webhook.command()
@click.argument("delivery", metavar="ID")
@store_command
async def show(console: Console, runtime: "Runtime", delivery: str) -> None:
    """Show a delivery with its body and the log of its attempts."""
    deliveries, tenant = _deliveries(runtime)
    delivery_id = await _resolve_id(deliveries, tenant, delivery)
    shown = (await deliveries.details(delivery_id, tenant)).to_json()
    console.print_either(shown, lambda: _print_delivery(console, shown))


def _print_delivery(terminal: Terminal, shown: Mapping[str, Any]) -> None:
    terminal.print(f"{shown['type']} to {shown['target']}: {shown['status']}", bold=True)
    for step in shown["log"]:
        detail = step.get("status") or step.get("error") or step.get("by") or ""
        terminal.print(f"  {step['at']}  {step['step']} {line(str(detail))}")
    terminal.print_result(json.dumps(shown["body"], ensure_ascii=False, indent=2))


@webhook.command()
@click.argument("delivery", metavar="ID")
@click.option(
    "--by",
    default=login_name,
    show_default="login name",
    metavar="NAME",
    help="Record this name.",
)
@store_command
async def redeliver(console: Console, runtime: "Runtime", delivery: str, by: str) -> None:
    """Let a worker send a delivery again, with the same id."""
    deliveries, tenant = _deliveries(runtime)
    delivery_id = await _resolve_id(deliveries, tenant, delivery)
    shown = await deliveries.view(await deliveries.redeliver(delivery_id, by=by, tenant=tenant))
    worker = console.settings.command("worker")
    console.print_either(
        shown, lambda: console.print(f"A worker will send {delivery_id} again: {worker}")
    )


async def _resolve_id(deliveries: "Deliveries", tenant: str | None, typed_id: str) -> str:
    """Return the complete id of a delivery. Raises NotFound or Refused."""
    names = [delivery.id for delivery in await deliveries.ordered(tenant)]
    matching = [name for name in names if name.startswith(typed_id)]
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
