"""`perdure pending …`, and the short forms `perdure approve` and `perdure deny`."""

import sys
from collections.abc import Callable
from typing import Any, get_args

import click

from perdure.cli.commands.types import (
    change,
    file_text,
    json_object,
    json_value,
    text_or_stdin,
)
from perdure.cli.settings import Settings, actor_name, by_option, shared_options, with_settings
from perdure.views.literals import CallKind, PendingStatus


@click.group()
@shared_options
def pending() -> None:
    """List and settle pending calls.

    An ID may be shortened to a unique prefix. @last is the newest open call of the session that
    this terminal used last; if that is not clear, you are asked. A decision or a result is recorded
    first. Then a worker continues the session, or this command does if none is running.
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
@with_settings
def list_(settings: Settings, /, **options: Any) -> int:
    """List pending calls, oldest first."""
    from perdure.cli.actions import pending as actions

    return actions.list_pending(settings, options)


@pending.command()
@click.argument("pending_id", metavar="ID")
@with_settings
def show(settings: Settings, pending_id: str) -> int:
    """Show a pending call, and the commands that settle it."""
    from perdure.cli.actions import pending as actions

    return actions.show_pending(settings, pending_id)


@pending.command()
@click.option(
    "--hours",
    type=click.IntRange(1, 24 * 31),
    default=24,
    show_default=True,
    help="Count the calls of the last hours.",
)
@with_settings
def stats(settings: Settings, hours: int) -> int:
    """Print how many calls were made, settled and expired, and how fast people decided.

    With --json, also per hour. Settled calls count as long as retention keeps them.
    """
    from perdure.cli.actions import pending as actions

    return actions.show_statistics(settings, hours)


def _settle_options(
    command: Callable[..., int], argument: Callable[[Any], Any] | None = None
) -> Callable[..., int]:
    """Add the options of every command that settles a call."""
    for decorate in (
        with_settings,
        click.option(
            "--wait", is_flag=True, help="Follow the session; exit codes are those of run."
        ),
        click.option("--no-run", is_flag=True, help="Record only; leave the session to a worker."),
        by_option,
        argument or click.argument("pending_id", metavar="ID"),
    ):
        command = decorate(command)
    return command


def _decision_options(noun: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Add the options of decisions that can be remembered, about one call or several."""
    ids = click.argument("pending_ids", metavar="ID...", nargs=-1, required=True)

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        command = _settle_options(command, ids)
        for option in (
            click.option("--yes", is_flag=True, help="Confirm a RULE that covers every tool."),
            click.option(
                "--remember-as",
                "rule",
                metavar="RULE",
                help=f"{noun} all calls that match RULE, such as shell:cmd=ls*, for the rest of "
                "the session.",
            ),
            click.option(
                "--remember",
                is_flag=True,
                help=f"{noun} exactly this call for the rest of the session.",
            ),
        ):
            command = option(command)
        return command

    return decorate


def _remember(options: dict[str, Any]) -> None:
    """Replace the options of the command line by those of the decision; ask about every tool."""
    from perdure.core.session.permissions import parse_rule

    rule, is_confirmed = options.pop("rule"), options.pop("yes")
    if rule and not is_confirmed and parse_rule(rule).is_every_tool and sys.stdin.isatty():
        question = f"The rule {rule!r} covers every tool of the session. Remember it?"
        is_confirmed = click.confirm(question, err=True)
    options["remember"] = rule or options["remember"]
    options["all_tools"] = is_confirmed


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
@_decision_options("Allow")
def approve(settings: Settings, pending_ids: tuple[str, ...], **options: Any) -> int:
    """Approve calls, all or none; a single one also with changed arguments.

    An ID may be shortened to a unique prefix. @last is the newest open call of the session that
    this terminal used last (run, chat, approve …). Without such a session it is the newest call of
    the only session that has an open one. If it is not clear, you are asked; without a terminal the
    command is refused and lists the calls.
    """
    changes = {**(options["args"] or {}), **dict(options.pop("changes"))}
    options["args"] = changes or None
    if changes and len(pending_ids) > 1:
        raise click.UsageError("--args and --set change the arguments of one call; give one ID")
    _remember(options)
    return _decide_all(settings, "approve", pending_ids, options)


@pending.command()
@click.option("--reason", metavar="TEXT", help="Tell the model this reason.")
@_decision_options("Deny")
def deny(settings: Settings, pending_ids: tuple[str, ...], **options: Any) -> int:
    """Deny calls, all or none, so that they never run.

    An ID may be shortened to a unique prefix. @last is the newest open call of the session that
    this terminal used last; if that is not clear, you are asked.
    """
    _remember(options)
    return _decide_all(settings, "deny", pending_ids, options)


def _decide_all(
    settings: Settings, verb: str, pending_ids: tuple[str, ...], options: dict[str, Any]
) -> int:
    if len(pending_ids) == 1:
        return _decide(settings, verb, pending_ids[0], options)
    options["by"] = actor_name(options["by"], settings.server)
    if options["wait"]:
        raise click.UsageError("--wait follows the session of one call; give one ID")
    from perdure.cli.actions import pending as actions

    return actions.decide_all(settings, verb, pending_ids, options)


def _output_options(text_help: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Add the options of which one is the output: as text, as JSON, or as a file."""

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        for name, kind, metavar, text in (
            ("--output-file", file_text, "PATH", "The text of this file, however long."),
            ("--output-json", json_value, "JSON", "The same as JSON; - reads it from stdin."),
            ("--output", text_or_stdin, "TEXT", f"{text_help} - reads it from stdin."),
        ):
            command = click.option(name, type=kind, metavar=metavar, help=text)(command)
        return command

    return decorate


def _choose_output(options: dict[str, Any]) -> None:
    """Replace the options of which one is the output by that output."""
    file, value = options.pop("output_file"), options.pop("output_json")
    if sum(item is not None for item in (options["output"], value, file)) != 1:
        raise click.UsageError("give one of --output, --output-json and --output-file")
    options["is_typed"] = value is None
    text = options["output"] if file is None else file
    options["output"] = text if value is None else value.value


@pending.command()
@_output_options(
    "The answer, or the output. If the question has a schema that text does not fit: JSON."
)
@_settle_options
def respond(settings: Settings, pending_id: str, **options: Any) -> int:
    """Answer a question, or supply an output instead of running a call."""
    _choose_output(options)
    return _decide(settings, "respond", pending_id, options)


@pending.command()
@_output_options("The output of the call.")
@click.option("--title", metavar="TEXT", help="Record this title with the result.")
@click.option("--metadata", type=json_object, metavar="JSON", help="Record this with the result.")
@_settle_options
def result(settings: Settings, pending_id: str, **options: Any) -> int:
    """Submit the result of a call that ran elsewhere."""
    _choose_output(options)
    return _decide(settings, "result", pending_id, options)


@pending.command()
@_settle_options
@click.argument("message", type=text_or_stdin)
def error(settings: Settings, pending_id: str, **options: Any) -> int:
    """Submit an error, the MESSAGE, for a call that failed elsewhere; - reads it from stdin."""
    return _decide(settings, "error", pending_id, options)


@pending.command()
@_settle_options
def cancel(settings: Settings, pending_id: str, **options: Any) -> int:
    """Cancel a call, and tell the model."""
    return _decide(settings, "cancel", pending_id, options)
