"""The options that every command takes, before or after its name."""

import getpass
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import click

from perdure.core.session.queues import DEFAULT

CONFIG: Final = "perdure.yaml"
_PASSWORD_OPTION: Final = re.compile(r"((?:ssl)?password=)[^&]+", re.IGNORECASE)


def login_name() -> str:
    """Return the login name of the person at the terminal."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "unknown"


F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class Settings:
    """Values of the shared options: what a command works on, and how it prints."""

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
    def is_local(self) -> bool:
        """True if an option names a configuration, a Runtime in Python or a store."""
        return any(name is not None for name in (self.config, self.app, self.store))

    @property
    def has_code(self) -> bool:
        """True if agents may be defined here: neither on a server nor with only a store."""
        return self.server is None and (self.store is None or self.config is not None)

    def worker_command(self, agent: str, queue: str = DEFAULT) -> str:
        """Return the command that starts a worker with this agent for this queue."""
        queue_option = () if queue == DEFAULT else ("--queue", queue)
        if self.has_code:
            return self.command("worker", *queue_option)
        words = " ".join(("perdure worker", *queue_option))
        where = f", where {agent!r} is defined" if agent else ""
        return f"{words} --config FILE (or --app MODULE:NAME){where}"

    def complete(self, command: str) -> str | None:
        """Return a command of a step with the options of this one; None if it needs code."""
        if not command.startswith("perdure "):
            return command
        words = shlex.split(command)[1:]
        if words[0] == "worker":
            return self.worker_command("", words[2] if len(words) > 2 else DEFAULT)
        drives = words[0] == "run" or words[:2] == ["sessions", "resume"]
        if drives and not self.has_code and self.server is None:
            return None
        settings = replace(self, tenant=None) if "--tenant" in words else self
        return settings.command(*words)

    def command(self, *words: str) -> str:
        """Return a command line to type that works on the same store or server as this one."""
        targets = (
            ("--config", self.config),
            ("--app", self.app),
            ("--store", self.store and without_password(self.store)),
            ("--server", self.server and without_password(self.server)),
            ("--token-file", self.token_file),
        )
        chosen = [part for name, value in targets if value for part in (name, value)]
        if self.tenant is not None:
            chosen += ["--tenant", self.tenant]
        return shlex.join(["perdure", *words, *chosen])


def without_password(url: str) -> str:
    """Return a URL to show: with … for its password, before the host or among its options."""
    scheme, _, rest = url.partition("://")
    user, _, address = rest.rpartition("@")
    if ":" in user and not user.startswith("/"):  # a path may have both characters
        url = f"{scheme}://{user.partition(':')[0]}:…@{address}"
    return _PASSWORD_OPTION.sub(r"\1…", url)


def _store_option(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is not None and value is not False and param.name is not None:
        setattr(ctx.ensure_object(Settings), param.name, value)


def _option(*names: str, **more: Any) -> Callable[[F], F]:
    return click.option(*names, expose_value=False, callback=_store_option, **more)


_SHARED = (
    _option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print one JSON object on stdout, the rest on stderr.",
    ),
    _option(
        "--config",
        metavar="FILE",
        help="Use this configuration.  [default: perdure.yaml, if it exists]",
    ),
    _option("--app", metavar="MODULE:NAME", help="Use this Runtime in Python, not a YAML file."),
    _option("--store", metavar="URL", help="Use this store, such as sqlite:///perdure.db."),
    _option("--server", metavar="URL", help="Use this server, with the token in PERDURE_TOKEN."),
    _option("--token-file", metavar="FILE", help="Read the token for --server from this file."),
    _option("--tenant", metavar="NAME", help="Work only on sessions of this tenant."),
    _option("-v", "--verbose", is_flag=True, help="Print debug logs and tracebacks on stderr."),
    _option("-q", "--quiet", is_flag=True, help="Print only results and errors."),
)


def _check_name(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value == "":
        raise click.UsageError("--by is empty; give a name, or leave the option out")
    return value


by_option = click.option(
    "--by",
    metavar="NAME",
    callback=_check_name,
    help="Record this name.  [default: your login name, or the name of the token]",
)


def shared_options(command: F) -> F:
    """Add the options that every command takes."""
    for option in reversed(_SHARED):
        command = option(command)
    return command


_pass_settings = click.make_pass_decorator(Settings, ensure=True)


def with_settings(command: Callable[Concatenate[Settings, P], R]) -> Callable[P, R]:
    """Add the options that every command takes, and pass their values as the first argument."""
    return shared_options(_pass_settings(command))


def config_file(settings: Settings) -> str | None:
    """Return the configuration that the options name, or else perdure.yaml if it exists."""
    if settings.is_local:
        return settings.config
    return CONFIG if Path(CONFIG).exists() else None
