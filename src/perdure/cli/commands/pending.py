"""`perdure pending …`, and the short forms `perdure approve` and `perdure deny`."""

from collections.abc import Callable
from typing import Any, get_args

import click

from perdure.cli.commands.types import change, json_object
from perdure.cli.settings import Settings, actor_name, by_option, shared_options, with_settings
from perdure.core.literals import CallKind, PendingStatus


@click.group()
@shared_options
def pending() -> None:
    """List and settle pending calls.

    An ID may be shortened to a unique prefix; @last is the newest call. A decision or a result is
    recorded first. Then a worker continues the session, or this command does if none is running.
    """


@pending.command("list")
@click.option("--kind", type=click.Choice(get_args(CallKind)), help="List only calls of this kind.")
@click.option("--tool", metavar="NAME", help="List only calls of this tool.")
@click.option("--session", metavar="ID", help="List only calls of this session.")
@click.option(
    "--status",
    type=click.Choice((*get_args(PendingStatus), "all")),
    help="List only calls with this status.  [default: all open calls]",
)
@shared_options
@with_settings
def list_(settings: Settings, /, **options: Any) -> int:
    """List pending calls, oldest first."""
    from perdure.cli.actions import pending as actions

    return actions.list_pending(settings, options)


@pending.command()
@click.argument("pending_id", metavar="ID")
@shared_options
@with_settings
def show(settings: Settings, pending_id: str) -> int:
    """Show a pending call, and the commands that settle it."""
    from perdure.cli.actions import pending as actions

    return actions.show_pending(settings, pending_id)


def _settle_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options of every command that settles a call."""
    for decorate in (
        with_settings,
        shared_options,
        click.option(
            "--wait", is_flag=True, help="Follow the session; exit codes are those of run."
        ),
        click.option("--no-run", is_flag=True, help="Record only; leave the session to a worker."),
        by_option,
        click.argument("pending_id", metavar="ID"),
    ):
        command = decorate(command)
    return command


def _decide(settings: Settings, verb: str, pending_id: str, options: dict[str, Any]) -> int:
    options["by"] = actor_name(options["by"], settings.server)
    if options["wait"] and options["no_run"]:
        raise click.UsageError("--wait and --no-run cannot be combined")
    from perdure.cli.actions import pending as actions

    return actions.decide(settings, verb, pending_id, options)


@pending.command()
@click.option("--args", type=json_object, metavar="JSON", help="Change these arguments.")
@click.option(
    "--set",
    "changes",
    type=change,
    metavar="KEY=VALUE",
    multiple=True,
    help="Change one argument; VALUE is JSON, or else text. Repeatable.",
)
@click.option("--note", metavar="TEXT", help="Record this note with the decision.")
@click.option(
    "--remember", is_flag=True, help="Allow exactly this call for the rest of the session."
)
@click.option(
    "--remember-as",
    "rule",
    metavar="RULE",
    help="Allow all calls that match RULE, such as shell:cmd=ls*, for the rest of the session.",
)
@_settle_options
def approve(settings: Settings, pending_id: str, **options: Any) -> int:
    """Approve a call, as it is or with changed arguments."""
    changes = {**(options["args"] or {}), **dict(options.pop("changes"))}
    options["args"] = changes or None
    options["remember"] = options.pop("rule") or options["remember"]
    return _decide(settings, "approve", pending_id, options)


@pending.command()
@click.option("--reason", metavar="TEXT", help="Tell the model this reason.")
@_settle_options
def deny(settings: Settings, pending_id: str, **options: Any) -> int:
    """Deny a call, so that it never runs."""
    return _decide(settings, "deny", pending_id, options)


@pending.command()
@click.option("--output", required=True, metavar="TEXT", help="The answer, or the output.")
@_settle_options
def respond(settings: Settings, pending_id: str, **options: Any) -> int:
    """Answer a question, or supply an output instead of running a call."""
    return _decide(settings, "respond", pending_id, options)


@pending.command()
@click.option("--output", required=True, metavar="TEXT", help="The output of the call.")
@click.option("--title", metavar="TEXT", help="Record this title with the result.")
@click.option("--metadata", type=json_object, metavar="JSON", help="Record this with the result.")
@_settle_options
def result(settings: Settings, pending_id: str, **options: Any) -> int:
    """Submit the result of a call that ran elsewhere."""
    return _decide(settings, "result", pending_id, options)


@pending.command()
@_settle_options
@click.argument("message")
def error(settings: Settings, pending_id: str, **options: Any) -> int:
    """Submit an error, the MESSAGE, for a call that failed elsewhere."""
    return _decide(settings, "error", pending_id, options)


@pending.command()
@_settle_options
def cancel(settings: Settings, pending_id: str, **options: Any) -> int:
    """Cancel a call, and tell the model."""
    return _decide(settings, "cancel", pending_id, options)
