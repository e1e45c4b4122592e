"""`perdure run`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.backend.console import Console, with_api
from perdure.cli.commands.option_types import json_object, read_stdin
from perdure.cli.recent import remember_session
from perdure.cli.settings import Settings, with_settings
from perdure.cli.terminal.terminal import line
from perdure.errors import Refused
from perdure.views.durations import duration_ms

if TYPE_CHECKING:
    from perdure.views.sessions import Result
    from perdure.views.values import Content, File


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
    "--timeout",
    type=duration_ms,
    metavar="DURATION",
    help="Follow the session for at most this long, such as 90s.",
)
@with_settings
def run(
    settings: Settings, /, agent: str, prompt: str | None, session: str | None, **options: Any
) -> int:
    """Send PROMPT to AGENT, and follow the session.

    If PROMPT is "-", it is read from stdin. The exit code is 8 if the session waits for an
    approval, an answer or a result. It is saved then, and the printed commands continue it.
    """
    if prompt == "-":
        prompt = _stdin()
    if prompt is not None and not prompt.strip():
        raise click.UsageError("the prompt is empty")
    if prompt is None and not options["files"] and (session is None or options["detach"]):
        raise click.UsageError("PROMPT is missing; give one, or - to read it from stdin")
    from perdure.cli.commands.foreground import DriveOptions, drive, resolve_last
    from perdure.ids import new_id

    content = _content(prompt, options["files"])
    name = new_id("s") if session is None else session

    async def main(console: Console) -> int:
        session_id, tenant = await resolve_last(console, name)
        handle = console.in_tenant(tenant).session(
            session_id, agent=agent, metadata=options["metadata"], queue=options["queue"]
        )
        if options["detach"] and content is not None:
            await handle.send(content, key=options["key"])
            _print_recorded(console, await console.snapshot(handle))
            return 0
        remember_session(settings, session_id)
        limits = DriveOptions(content, options["key"], options["timeout"], agent)
        return await drive(console, handle, limits)

    return with_api(settings, main, need="any", names=[name])


def _stdin() -> str:
    try:
        return read_stdin()
    except click.BadParameter as error:
        raise click.UsageError(f"{error.message}; send the data with --file") from error


def _content(prompt: str | None, files: Sequence[str]) -> "Content | None":
    """Return the message, or None if there is none."""
    if not files:
        return prompt
    return [*([] if prompt is None else [prompt]), *map(_file, files)]


def _file(path: str) -> "File":
    from perdure.views.values import File

    try:
        return File.read(Path(path))
    except OSError as error:
        raise Refused(
            f"the file {path} cannot be read: {error.strerror}",
            code="FILE_INVALID",
            hint="name a file that this user may read",
        ) from error


def _print_recorded(console: Console, session: "Result[Any]") -> None:
    console.print_either(session, lambda: None)
    name, settings = session.session_id, console.settings
    worker = settings.worker_command(session.agent, session.queue)
    console.print(f"Recorded the message for session {line(name)}. A worker will drive it.")
    console.print(f"  start a worker   {worker}")
    console.print(f"  follow           {settings.command('sessions', 'events', name, '--follow')}")
