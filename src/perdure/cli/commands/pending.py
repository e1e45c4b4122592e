"""`perdure pending …`, and the short forms `perdure approve` and `perdure deny`."""

from collections.abc import Callable
from typing import Any

import click

from perdure.cli.commands.types import change, json_object
from perdure.cli.settings import Settings, shared, who, with_settings

KINDS = ("tool", "approval", "question", "child", "timer")
STATUSES = ("waiting", "processing", "completed", "failed", "expired", "cancelled", "all")


@click.group()
@shared
def pending() -> None:
    """Look at the calls that wait and settle them. IDs may be shortened; @last is the newest.

    What is given here is recorded first. Where a worker is alive it goes on there, else here.
    """


@pending.command("list")
@click.option("--kind", type=click.Choice(KINDS))
@click.option("--tool", metavar="NAME")
@click.option("--session", metavar="ID")
@click.option("--status", type=click.Choice(STATUSES), help="The open ones if not given.")
@shared
@with_settings
def list_(settings: Settings, /, **wanted: Any) -> int:
    """List the calls that wait."""
    from perdure.cli.actions import pending as waiting

    return waiting.list_pending(settings, wanted)


@pending.command()
@click.argument("pending_id", metavar="ID")
@shared
@with_settings
def show(settings: Settings, pending_id: str) -> int:
    """Show one call, and what to type about it."""
    from perdure.cli.actions import pending as waiting

    return waiting.show_pending(settings, pending_id)


def _settling(command: Callable[..., int]) -> Callable[..., int]:
    """What every command takes that settles a call."""
    for decorate in (
        with_settings,
        shared,
        click.option("--wait", is_flag=True, help="Follow the session, and exit like run."),
        click.option("--no-run", is_flag=True, help="Only record it."),
        click.option("--by", metavar="NAME", help="Who; else the login name, or the token's."),
        click.argument("pending_id", metavar="ID"),
    ):
        command = decorate(command)
    return command


def _decide(settings: Settings, verb: str, pending_id: str, given: dict[str, Any]) -> int:
    given["by"] = who(given["by"], settings.server)
    if given["wait"] and given["no_run"]:
        raise click.UsageError("--wait and --no-run exclude each other")
    from perdure.cli.actions import pending as deciding

    return deciding.decide(settings, verb, pending_id, given)


@pending.command()
@click.option("--args", type=json_object, metavar="JSON", help="Changes to its arguments.")
@click.option(
    "--set",
    "changes",
    type=change,
    metavar="KEY=VALUE",
    multiple=True,
    help="One change; JSON, else text.",
)
@click.option("--note", metavar="TEXT", help="Kept with the decision.")
@click.option("--remember", is_flag=True, help="Exactly this call is not asked about again here.")
@click.option(
    "--remember-as", "rule", metavar="RULE", help="Nor what a rule says, such as shell:cmd=ls*."
)
@_settling
def approve(settings: Settings, pending_id: str, **given: Any) -> int:
    """Let a call run, exactly as it stands or with changes."""
    changes = {**(given["args"] or {}), **dict(given.pop("changes"))}
    given["args"] = changes or None
    given["remember"] = given.pop("rule") or given["remember"]
    return _decide(settings, "approve", pending_id, given)


@pending.command()
@click.option("--reason", metavar="TEXT", help="Told to the model.")
@_settling
def deny(settings: Settings, pending_id: str, **given: Any) -> int:
    """Do not let a call run."""
    return _decide(settings, "deny", pending_id, given)


@pending.command()
@click.option("--output", required=True, metavar="TEXT")
@_settling
def respond(settings: Settings, pending_id: str, **given: Any) -> int:
    """Answer a question, or give an output instead of running a call."""
    return _decide(settings, "respond", pending_id, given)


@pending.command()
@click.option("--output", required=True, metavar="TEXT")
@click.option("--title", metavar="TEXT")
@click.option("--metadata", type=json_object, metavar="JSON")
@_settling
def result(settings: Settings, pending_id: str, **given: Any) -> int:
    """Give the result of a call that ran elsewhere."""
    return _decide(settings, "result", pending_id, given)


@pending.command()
@_settling
@click.argument("message")
def error(settings: Settings, pending_id: str, **given: Any) -> int:
    """Say that a call that ran elsewhere has failed."""
    return _decide(settings, "error", pending_id, given)


@pending.command()
@_settling
def cancel(settings: Settings, pending_id: str, **given: Any) -> int:
    """Give a call up; the model is told."""
    return _decide(settings, "cancel", pending_id, given)
