"""The options that every command takes, before or after its name."""

import getpass
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from perdure.core.session.queues import DEFAULT


def who(by: str | None, server: str | None) -> str | None:
    """Who does it: as given, else the login name; a server knows it by the token."""
    if by == "":
        raise click.UsageError("--by is empty; give a name")
    return login_name() if by is None and server is None else by


def login_name() -> str:
    """Who types."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "unknown"


F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True)
class Settings:
    """What a command works on, and how it talks."""

    as_json: bool = False
    config: str | None = None
    app: str | None = None
    store: str | None = None
    server: str | None = None
    token_file: str | None = None
    tenant: str | None = None
    verbose: bool = False
    quiet: bool = False

    @property
    def has_code(self) -> bool:
        """Whether agents may be known here; a store alone has none, and a server is elsewhere."""
        return self.server is None and (self.store is None or self.config is not None)

    def worker(self, agent: str, queue: str = DEFAULT) -> str:
        """The command that starts a worker which has the agent and serves the queue."""
        served = () if queue == DEFAULT else ("--queue", queue)
        if self.has_code:
            return self.command("worker", *served)
        words = " ".join(("perdure worker", *served))
        return f"{words} --config FILE (or --app MODULE:NAME), where {agent!r} is known"

    def command(self, *words: str) -> str:
        """A command line that works on the same thing as this one, to be typed as it is."""
        given = (
            ("--config", self.config),
            ("--app", self.app),
            ("--store", self.store),
            ("--server", self.server),
            ("--token-file", self.token_file),
        )
        chosen = [part for name, value in given if value for part in (name, value)]
        if self.tenant is not None:
            chosen += ["--tenant", self.tenant]
        return shlex.join(["perdure", *words, *chosen])


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is not None and value is not False and param.name is not None:
        setattr(ctx.ensure_object(Settings), param.name, value)


def _option(*names: str, **more: Any) -> Callable[[F], F]:
    return click.option(*names, expose_value=False, callback=_keep, **more)


_SHARED = (
    _option(
        "--json", "as_json", is_flag=True, help="One JSON object on stdout, the rest on stderr."
    ),
    _option("--config", metavar="FILE", help="The YAML file (default: perdure.yaml, if there)."),
    _option("--app", metavar="MODULE:NAME", help="A Runtime in Python, instead of a YAML file."),
    _option("--store", metavar="URL", help="A store alone, such as sqlite:///perdure.db."),
    _option("--server", metavar="URL", help="A server; its token is in PERDURE_TOKEN."),
    _option("--token-file", metavar="FILE", help="Where the token for --server is, instead."),
    _option("--tenant", metavar="NAME", help="See this tenant only."),
    _option("-v", "--verbose", is_flag=True, help="Debug logs and tracebacks on stderr."),
    _option("-q", "--quiet", is_flag=True, help="Only answers and errors."),
)


def shared(command: F) -> F:
    """Give a command the options that every command takes."""
    for option in reversed(_SHARED):
        command = option(command)
    return command


with_settings = click.make_pass_decorator(Settings, ensure=True)
