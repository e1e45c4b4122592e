"""`perdure pending`: its commands, the modules that have them, and their options."""

from collections.abc import Callable
from typing import Any, Final

import click

from perdure.cli.groups import LateGroup
from perdure.cli.settings import by_option, shared_options, with_settings

Options = dict[str, Any]

CONTENTS: Final = {
    "approve": (
        "decisions",
        "Approve calls, all or none; a single one also with changed arguments.",
    ),
    "cancel": ("settlement", "Cancel a call, and tell the model."),
    "deny": ("decisions", "Deny calls, all or none, so that they never run."),
    "error": (
        "settlement",
        "Submit an error, the MESSAGE, for a call that failed elsewhere; - reads it from stdin.",
    ),
    "list": ("calls", "List pending calls, oldest first."),
    "respond": ("settlement", "Answer a question, or supply an output instead of running a call."),
    "result": ("settlement", "Submit the result of a call that ran elsewhere."),
    "show": ("calls", "Show a pending call, and the commands that settle it."),
    "stats": (
        "calls",
        "Print how many calls were created, settled and expired, and how fast people decided.",
    ),
}


@click.group(cls=LateGroup, package=__package__, contents=CONTENTS)
@shared_options
def pending() -> None:
    """List and settle pending calls.

    An ID may be shortened to a unique prefix. @last is the newest open call of the session that
    this terminal used last; if that is not clear, you are asked. A decision or a result is recorded
    first. Then a worker continues the session, or this command does if none is running.
    """


def settle_options(
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
