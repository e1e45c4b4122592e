"""`perdure run`."""

import sys
from typing import Any

import click

from perdure.cli.commands.types import json_object
from perdure.cli.settings import Settings, shared, with_settings


@click.command()
@click.argument("agent")
@click.argument("prompt", required=False)
@click.option("-s", "--session", metavar="SESSION", help="Its id; a new one if not given.")
@click.option("--key", help="The same key and message again sends nothing, and goes on.")
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    help="A file to send along; may be repeated.",
)
@click.option("--metadata", type=json_object, metavar="JSON", help="Kept with a new session.")
@click.option("--queue", metavar="NAME", help="Of a new session: which workers it is for.")
@click.option("--detach", is_flag=True, help="Only record the message: a worker drives.")
@click.option("--timeout", metavar="DURATION", help="How long to follow it, such as 90s.")
@shared
@with_settings
def run(settings: Settings, /, **given: Any) -> int:
    """Give AGENT a PROMPT (- reads it from stdin) and watch what happens.

    Exits with 8 where it waits for somebody: the session is saved, and goes on with the commands
    that are printed then.
    """
    prompt, session = given["prompt"], given["session"]
    if prompt == "-":
        given["prompt"] = prompt = _stdin()
    if prompt is not None and not prompt.strip():
        raise click.UsageError("the prompt is empty")
    if prompt is None and not given["files"] and (session is None or given["detach"]):
        raise click.UsageError("there is no PROMPT; give one, or - to read it from stdin")
    from perdure.cli.actions import run as driving

    return driving.run(settings, driving.Ask(**given))


def _stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"stdin is not UTF-8 (byte {error.start}); send it with --file"
        ) from error
