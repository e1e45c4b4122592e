"""The root command: reports every error in one place, as text or JSON, with its exit code."""

import contextlib
import errno
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click

from perdure.cli.commands.agents import agents
from perdure.cli.commands.chat import chat
from perdure.cli.commands.config import config
from perdure.cli.commands.db import db
from perdure.cli.commands.demo import demo
from perdure.cli.commands.doctor import doctor
from perdure.cli.commands.init import init
from perdure.cli.commands.mcp import mcp
from perdure.cli.commands.pending import approve, deny, pending
from perdure.cli.commands.run import run
from perdure.cli.commands.serve import serve
from perdure.cli.commands.sessions import sessions
from perdure.cli.commands.tasks import tasks
from perdure.cli.commands.webhook import webhook
from perdure.cli.commands.worker import worker
from perdure.cli.process import INTERRUPTED, skip_final_collection
from perdure.cli.settings import Settings, shared_options
from perdure.cli.terminal.terminal import clean
from perdure.errors import PerdureError

_COMMAND = re.compile(r"perdure (pending|sessions|tasks) [a-z]+( [\w@.:-]+)?")


class Root(click.Group):
    """A group whose commands return their exit code."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **options: Any) -> Any:
        """Run a command and exit with its code. Expected errors print no traceback."""
        words = sys.argv[1:] if args is None else list(args)
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # a terminal that cannot print ✓ gets \u2713
                stream.reconfigure(errors="backslashreplace")
        options["standalone_mode"] = False
        settings = options["obj"] = Settings()
        run_command = partial(super().main, words, *more, **options)
        exit_code = _exit_code(run_command, words, settings)
        skip_final_collection()
        sys.exit(exit_code)


def _exit_code(run_command: Callable[[], Any], words: Sequence[str], settings: Settings) -> int:
    try:
        return int(run_command() or 0)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BaseException as error:  # the outermost frame reports every error
        cause = _unwrap(error)
        if isinstance(cause, SystemExit | GeneratorExit):
            raise
        if isinstance(cause, KeyboardInterrupt):
            return INTERRUPTED
        if isinstance(cause, OSError) and cause.errno == errno.EPIPE:
            return _discard_output()
        return _report(cause, words, settings)


def _unwrap(error: BaseException) -> BaseException:
    """Return the single error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _discard_output() -> int:
    """Discard buffered output after its reader (`| head`) has closed the pipe."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _report(error: BaseException, words: Sequence[str], settings: Settings) -> int:
    as_json, verbose = "--json" in words, "-v" in words or "--verbose" in words
    if isinstance(error, click.ClickException):
        if not as_json:
            error.show()
            return error.exit_code
        return _print_error(_usage_json(error), error.exit_code, as_json=True)
    if verbose:
        traceback.print_exception(error)
    if isinstance(error, PerdureError):
        error_json = error.to_json()
        error_json["hint"] = _complete_hint(error_json["hint"], settings)
        return _print_error(error_json, error.exit_code, as_json=as_json)
    text = " ".join(str(error).split())
    unforeseen: dict[str, Any] = {
        "error": f"{type(error).__name__}: {text}" if text else type(error).__name__,
        "code": "INTERNAL",
        "hint": "" if verbose else "run the command again with -v to see the traceback",
        "details": {},
    }
    return _print_error(unforeseen, 1, as_json=as_json)


def _complete_hint(hint: str, settings: Settings) -> str:
    """Return the hint; if it is a command, with the options that name the same store or server."""
    if _COMMAND.fullmatch(hint) is None:
        return hint
    return settings.command(*hint.split()[1:])


def _usage_json(error: click.ClickException) -> dict[str, Any]:
    ctx = getattr(error, "ctx", None)
    hint = f"{ctx.command_path} --help" if ctx is not None else "perdure --help"
    return {"error": error.format_message(), "code": "USAGE", "hint": hint, "details": {}}


def _print_error(error_json: dict[str, Any], exit_code: int, *, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps(error_json, ensure_ascii=False, default=str), err=True)
        return exit_code
    click.echo(f"error: {clean(error_json['error'])}", err=True)
    if error_json["hint"]:
        click.echo(f"hint: {clean(error_json['hint'])}", err=True)
    return exit_code


@click.group(
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="perdure", message="%(prog)s %(version)s")
@shared_options
def cli() -> None:
    """A durable runtime for AI agents.

    Every step of a session is recorded. A run that waits for a person or for another system needs
    no process, and continues where it stopped, today or next week.

    Exit codes: 0 success, 1 failure, 2 usage or configuration error, 3 not found, 4 not allowed,
    5 conflict, 6 timeout, 7 corrupt data, 8 waiting, 130 interrupted.
    """


for _command in (
    init,
    run,
    chat,
    serve,
    mcp,
    worker,
    sessions,
    pending,
    approve,
    deny,
    tasks,
    agents,
    config,
    doctor,
    db,
    webhook,
    demo,
):
    cli.add_command(_command)
