"""From the options of a command to an open Runtime."""

import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Literal, TypeVar

import anyio

from perdure.app import Runtime
from perdure.cli.backend import find as finding
from perdure.cli.backend.base import Backend
from perdure.cli.backend.local import Local, known_of
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import clean
from perdure.config.load_object import load_object
from perdure.errors import ConfigError
from perdure.runtime.records.entries import SessionEntry

R = TypeVar("R")
Need = Literal["any", "existing"]

CONFIG: Final = "perdure.yaml"
DATABASE: Final = "perdure.db"


def working(
    settings: Settings, main: Callable[[Backend], Awaitable[R]], *, need: Need = "existing"
) -> R:
    """Open the server or the runtime that the options name, await `main` with it, close."""
    if settings.server is not None:
        from perdure.cli.backend.remote import served

        log_to_stderr(settings, logging.WARNING)
        return served(settings, main)
    return opened(settings, lambda runtime: main(Local(runtime)), need=need)


def opened(
    settings: Settings,
    main: Callable[[Runtime], Awaitable[R]],
    *,
    need: Need = "existing",
    level: int = logging.WARNING,
) -> R:
    """Open what the options name, await `main` with it, close. `existing`: create no database."""
    log_to_stderr(settings, level)
    runtime = runtime_of(settings, need)
    scoped = runtime if settings.tenant is None else runtime.tenant(settings.tenant)

    async def inside() -> R:
        async with runtime:
            return await main(scoped)

    return anyio.run(inside)


async def known_session(runtime: Runtime, given: str) -> SessionEntry:
    """The entry of the session that is meant. NotFound, or Refused AMBIGUOUS_ID."""
    return await known_of(runtime, await finding.session(Local(runtime), given))


def runtime_of(settings: Settings, need: Need) -> Runtime:
    """The runtime that the options name. ConfigError if they name none."""
    if settings.server is not None:
        raise ConfigError(
            "this command works on a store, and not through a server",
            code="NOT_ON_A_SERVER",
            hint="type it where the store is, with --config, --app or --store",
        )
    if settings.app is not None:
        return _of_app(settings, settings.app)
    file = config_file(settings)
    if file is not None:
        check_exists(settings.store, need)
        return Runtime.from_config(file, store=settings.store)
    url = settings.store
    if url is None and need == "existing" and Path(DATABASE).exists():
        url = f"sqlite:///{DATABASE}"
    if url is None:
        raise ConfigError(
            f"there is no {CONFIG} here, and neither --config, --app nor --store says what to use",
            code="NOTHING_NAMED",
            hint="perdure --app MODULE:NAME …, or --store sqlite:///perdure.db",
        )
    check_exists(url, need)
    return Runtime(url)


def config_file(settings: Settings) -> str | None:
    """The configuration that the options name, or that stands here and they leave to count."""
    if settings.config is not None or settings.store is not None or settings.app is not None:
        return settings.config
    return CONFIG if Path(CONFIG).exists() else None


def _of_app(settings: Settings, target: str) -> Runtime:
    if settings.config is not None or settings.store is not None:
        raise ConfigError(
            "--app goes with neither --config nor --store",
            code="OPTIONS_CLASH",
            hint="the Runtime in Python says which store it has",
        )
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise ConfigError(
            f"--app is {target!r}, and must be MODULE:NAME",
            code="APP_INVALID",
            hint="such as --app shop:runtime, for runtime = Runtime(…) in shop.py",
        )
    found = load_object(target, Path.cwd())
    if not isinstance(found, Runtime):
        raise ConfigError(
            f"{target} is a {type(found).__name__}, not a Runtime",
            code="APP_INVALID",
            hint="name an unopened Runtime: runtime = Runtime(…, agents=[…])",
        )
    return found


def check_exists(url: str | None, need: Need) -> None:
    """A mistyped name must not become an empty database that answers 'nothing there'."""
    if url is None or need != "existing" or not url.startswith(("sqlite:///", "files:")):
        return
    path = url.removeprefix("sqlite:///").removeprefix("files:")
    if not Path(path).exists():
        raise ConfigError(
            f"there is no database {path!r}",
            code="STORE_NOT_FOUND",
            hint="check --store; perdure run, serve and worker create it",
        )


class _OneLine(logging.Formatter):
    """`12:00:01 info  text`, with nothing in it that a terminal obeys."""

    def format(self, record: logging.LogRecord) -> str:
        head = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower():<7} "
        text = clean(record.getMessage())
        if record.exc_info:
            text = f"{text}\n{clean(self.formatException(record.exc_info))}"
        return head + text


def log_to_stderr(settings: Settings, level: int) -> None:
    """One readable format for all logs of a command."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    chosen = logging.ERROR if settings.quiet else level
    logging.getLogger("perdure").setLevel(logging.DEBUG if settings.verbose else chosen)
