"""`perdure run`."""

from typing import Any

import click

from perdure.cli.commands.types import json_object, read_stdin
from perdure.cli.settings import Settings, with_settings


@click.command()
@click.argument("agent")
@click.argument("prompt", required=False)
@click.option("-s", "--session", metavar="SESSION", help="Use this session.  [default: a new one]")
@click.option(
    "--key",
    metavar="KEY",
    help="Message key: the same message with the same key is recorded only once.",
)
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    help="Send this file with the message. Repeatable.",
)
@click.option("--metadata", type=json_object, metavar="JSON", help="Metadata for a new session.")
@click.option("--queue", metavar="NAME", help="Queue for a new session.")
@click.option("--detach", is_flag=True, help="Only record the message, and let a worker drive.")
@click.option(
    "--timeout", metavar="DURATION", help="Follow the session for at most this long, such as 90s."
)
@with_settings
def run(settings: Settings, /, **options: Any) -> int:
    """Send PROMPT to AGENT, and follow the session.

    If PROMPT is "-", it is read from stdin. The exit code is 8 if the session waits for an
    approval, an answer or a result. It is saved then, and the printed commands continue it.
    """
    prompt, session = options["prompt"], options["session"]
    if prompt == "-":
        options["prompt"] = prompt = _stdin()
    if prompt is not None and not prompt.strip():
        raise click.UsageError("the prompt is empty")
    if prompt is None and not options["files"] and (session is None or options["detach"]):
        raise click.UsageError("PROMPT is missing; give one, or - to read it from stdin")
    from perdure.cli.actions import run as actions

    return actions.run(settings, actions.RunOptions(**options))


def _stdin() -> str:
    try:
        return read_stdin()
    except click.BadParameter as error:
        raise click.UsageError(f"{error.message}; send the data with --file") from error
