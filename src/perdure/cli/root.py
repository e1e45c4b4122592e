"""The root command: what fails is told in one place, as text or JSON, with its exit code."""

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
from perdure.cli.commands.pending import approve, deny, pending
from perdure.cli.commands.run import run
from perdure.cli.commands.serve import serve
from perdure.cli.commands.sessions import sessions
from perdure.cli.commands.webhook import webhook
from perdure.cli.commands.worker import worker
from perdure.cli.process import end_without_looking
from perdure.cli.settings import Settings, shared
from perdure.cli.terminal.terminal import clean
from perdure.errors import PerdureError

INTERRUPTED = 130
_COMMAND = re.compile(r"perdure (pending|sessions) [a-z]+( [\w@.:-]+)?")


class Root(click.Group):
    """A group whose commands answer their exit code."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **options: Any) -> Any:
        """Run a command and leave with its exit code; no traceback for what was foreseen."""
        given = sys.argv[1:] if args is None else list(args)
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # a terminal that has no ✓ gets \u2713
                stream.reconfigure(errors="backslashreplace")
        options["standalone_mode"] = False
        settings = options["obj"] = Settings()
        run_command = partial(super().main, given, *more, **options)
        exit_code = _exit_code(run_command, given, settings)
        end_without_looking()
        sys.exit(exit_code)


def _exit_code(run_command: Callable[[], Any], given: Sequence[str], settings: Settings) -> int:
    try:
        return int(run_command() or 0)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BaseException as error:  # the door: everything is told here
        found = _alone(error)
        if isinstance(found, SystemExit | GeneratorExit):
            raise
        if isinstance(found, KeyboardInterrupt):
            return INTERRUPTED
        if isinstance(found, OSError) and found.errno == errno.EPIPE:
            return _reader_left()
        return _told(found, given, settings)


def _alone(error: BaseException) -> BaseException:
    """The one error in groups of one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _reader_left() -> int:
    """Whoever read our output (`| head`) has gone: what is still buffered has no reader."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _told(error: BaseException, given: Sequence[str], settings: Settings) -> int:
    as_json, verbose = "--json" in given, "-v" in given or "--verbose" in given
    if isinstance(error, click.ClickException):
        if not as_json:
            error.show()
            return error.exit_code
        return _tell(_usage(error), error.exit_code, as_json=True)
    if verbose:
        traceback.print_exception(error)
    if isinstance(error, PerdureError):
        told = error.to_json()
        told["hint"] = _on_the_same(told["hint"], settings)
        return _tell(told, error.exit_code, as_json=as_json)
    text = " ".join(str(error).split())
    unforeseen: dict[str, Any] = {
        "error": f"{type(error).__name__}: {text}" if text else type(error).__name__,
        "code": "INTERNAL",
        "hint": "" if verbose else "run with -v for the traceback",
        "details": {},
    }
    return _tell(unforeseen, 1, as_json=as_json)


def _on_the_same(hint: str, settings: Settings) -> str:
    """A hint that is a command, with the options that name what this one worked on."""
    if _COMMAND.fullmatch(hint) is None:
        return hint
    return settings.command(*hint.split()[1:])


def _usage(error: click.ClickException) -> dict[str, Any]:
    ctx = getattr(error, "ctx", None)
    hint = f"{ctx.command_path} --help" if ctx is not None else "perdure --help"
    return {"error": error.format_message(), "code": "USAGE", "hint": hint, "details": {}}


def _tell(told: dict[str, Any], exit_code: int, *, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps(told, ensure_ascii=False, default=str), err=True)
        return exit_code
    click.echo(f"error: {clean(told['error'])}", err=True)
    if told["hint"]:
        click.echo(f"hint: {clean(told['hint'])}", err=True)
    return exit_code


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="perdure", message="%(prog)s %(version)s")
@shared
def cli() -> None:
    """A durable runtime for AI agents.

    Sessions are saved as they go: a run that waits for a person or for another system needs no
    process, and goes on where it stopped, today or next week.

    Exit codes: 0 ok, 1 failed, 2 usage or configuration, 3 not found, 4 not allowed, 5 conflict,
    6 timed out, 7 corrupt, 8 waiting, 130 interrupted.
    """


for _command in (
    init,
    run,
    chat,
    serve,
    worker,
    sessions,
    pending,
    approve,
    deny,
    agents,
    config,
    doctor,
    db,
    webhook,
    demo,
):
    cli.add_command(_command)
