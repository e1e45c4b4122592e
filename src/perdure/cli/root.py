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
from typing import Any, Final

import click

from perdure.cli.exit_codes import INTERRUPTED
from perdure.cli.groups import LateGroup
from perdure.cli.process import skip_final_collection
from perdure.cli.settings import Settings, shared_options
from perdure.cli.terminal.terminal import clean
from perdure.errors import PerdureError

_HINT: Final = re.compile(r"perdure (pending|sessions|tasks) [a-z]+( [\w@.:-]+)?")

# The module of each command, and the first line of its help: --help and completion load none.
COMMANDS: Final = {
    "agents": ("agents", "Inspect the configured agents."),
    "approve": (
        "pending.decisions",
        "Approve calls, all or none; a single one also with changed arguments.",
    ),
    "chat": ("chat", "Talk with AGENT, and decide approvals inline."),
    "config": ("config", "Check the configuration."),
    "db": ("db", "Inspect, back up, migrate, convert and copy the database."),
    "demo": ("demo", "Watch a session survive while two workers are killed."),
    "deny": ("pending.decisions", "Deny calls, all or none, so that they never run."),
    "doctor": ("doctor", "Check the store, or one SESSION."),
    "init": ("init", "Create a project that runs at once, offline, and has a test."),
    "mcp": ("mcp", "Serve tasks and agents to one MCP client, on stdin and stdout."),
    "pending": ("pending", "List and settle pending calls."),
    "run": ("run", "Send PROMPT to AGENT, and follow the session."),
    "serve": ("serve", "Serve sessions, approvals and results over HTTP."),
    "sessions": ("sessions", "List, inspect, continue and change sessions."),
    "tasks": ("tasks", "Tasks: background agents, and work that several agents and people share."),
    "webhook": ("webhook", "Sign requests, and inspect webhook deliveries."),
    "worker": ("worker", "Drive all sessions that are due, until SIGTERM or Ctrl-C."),
}


class Root(LateGroup):
    """The root command: its commands return their exit codes."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, which is in its module under its name."""
        del ctx
        command: click.Command | None = getattr(self.load(cmd_name), cmd_name, None)
        return command

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
    if _HINT.fullmatch(hint) is None:
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
    package="perdure.cli.commands",
    contents=COMMANDS,
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
