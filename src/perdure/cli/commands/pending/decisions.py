"""`perdure approve` and `perdure deny`: decisions about one call, or about several at once."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from perdure.cli.commands.option_types import change, json_object
from perdure.cli.commands.pending.group import Options, pending, settle_options
from perdure.cli.settings import Settings


def _decision_options(noun: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Add the options of decisions that can be remembered, about one call or several."""
    ids = click.argument("pending_ids", metavar="ID...", nargs=-1, required=True)

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        command = settle_options(command, ids)
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
def approve(
    settings: Settings,
    pending_ids: tuple[str, ...],
    args: Options | None,
    changes: tuple[tuple[str, Any], ...],
    note: str | None,
    **options: Any,
) -> int:
    """Approve calls, all or none; a single one also with changed arguments.

    An ID may be shortened to a unique prefix. @last is the newest open call of the session that
    this terminal used last (run, chat, approve …). Without such a session it is the newest call of
    the only session that has an open one. If it is not clear, you are asked; without a terminal the
    command is refused and lists the calls.
    """
    changed = {**(args or {}), **dict(changes)} or None
    if changed and len(pending_ids) > 1:
        raise click.UsageError("--args and --set change the arguments of one call; give one ID")
    return _decide(settings, "approve", pending_ids, {"args": changed, "note": note}, options)


@pending.command()
@click.option("--reason", metavar="TEXT", help="Tell the model this reason.")
@_decision_options("Deny")
def deny(
    settings: Settings, pending_ids: tuple[str, ...], reason: str | None, **options: Any
) -> int:
    """Deny calls, all or none, so that they never run.

    An ID may be shortened to a unique prefix. @last is the newest open call of the session that
    this terminal used last; if that is not clear, you are asked.
    """
    return _decide(settings, "deny", pending_ids, {"reason": reason}, options)


def _decide(
    settings: Settings, verb: str, typed_ids: Sequence[str], fields: Options, options: Options
) -> int:
    from perdure.cli.commands.pending.settlement import decide_all, settle

    remember, all_tools = _remembered(options)
    if len(typed_ids) == 1:
        fields |= {"remember": remember, "all_tools": all_tools}
        return settle(settings, verb, typed_ids[0], options, lambda _: fields)
    if options["wait"]:
        raise click.UsageError("--wait follows the session of one call; give one ID")
    fields |= {"decision": verb, "remember": remember, "allTools": all_tools}
    choice = {name: value for name, value in fields.items() if value is not None}

    return decide_all(settings, verb, typed_ids, choice, options)


def _remembered(options: Options) -> tuple[bool | str, bool]:
    """Return what to remember; ask about a rule that covers every tool."""
    from perdure.core.session.permissions import parse_rule

    rule, is_confirmed = options.pop("rule"), options.pop("yes")
    if rule and not is_confirmed and parse_rule(rule).is_every_tool and sys.stdin.isatty():
        question = f"The rule {rule!r} covers every tool of the session. Remember it?"
        is_confirmed = click.confirm(question, err=True)
    return rule or options.pop("remember"), is_confirmed
