"""Opening the runtime that the options of a command name."""

import logging
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Literal, TypeVar

import anyio

from perdure.app import Runtime
from perdure.cli.logs import log_to_stderr
from perdure.cli.process import run_async
from perdure.cli.settings import CONFIG, Settings, config_file, login_name
from perdure.config.load_object import load_object
from perdure.core.roles import Principal
from perdure.errors import ConfigError
from perdure.store.base import Unavailable
from perdure.views.literals import Role

R = TypeVar("R")
Need = Literal["any", "existing"]

DATABASE: Final = "perdure.db"
VIA: Final = "cli"
ROLE: Final[Role] = "admin"  # of a person who can open the store: as on a server without tokens
_FIRST_RETRY_S: Final = 1.0
_LAST_RETRY_S: Final = 8.0

logger = logging.getLogger("perdure")


def with_runtime(
    settings: Settings,
    main: Callable[[Runtime], Awaitable[R]],
    *,
    need: Need = "existing",
    level: int = logging.WARNING,
    patient: bool = False,
    prints_events: bool = False,
) -> R:
    """Open the runtime that the options name, await `main` with it, and close it.

    With `need="existing"` no database is created; with `patient` it is opened again and again
    while the store is not available. If `main` prints the events of the sessions that it drives,
    they are not logged as well.
    """
    log_to_stderr(settings, level, with_retries=not prints_events)
    runtime = load_runtime(settings, need)
    scoped = runtime if settings.tenant is None else runtime.tenant(settings.tenant)

    async def inside() -> R:
        async with AsyncExitStack() as stack:
            if patient:
                await retry_unavailable(lambda: stack.enter_async_context(runtime))
            else:
                await stack.enter_async_context(runtime)
            return await main(scoped)

    return run_async(inside)


def as_person(runtime: Runtime) -> Runtime:
    """Return a runtime as the person at this terminal uses it."""
    return runtime.acting_as(Principal(login_name(), ROLE, on_behalf=True), via=VIA)


async def retry_unavailable(attempt: Callable[[], Awaitable[R]]) -> R:
    """Await an attempt until the store is available; each failure is logged as a warning."""
    pause_s = _FIRST_RETRY_S
    while True:
        try:
            return await attempt()
        except Unavailable as error:
            logger.warning("%s; next attempt in %g s", error.message, pause_s)
        await anyio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LAST_RETRY_S)


def load_runtime(settings: Settings, need: Need) -> Runtime:
    """Return the runtime that the options name, not open yet. Raises ConfigError."""
    if settings.server is not None:
        raise ConfigError(
            "this command needs the store itself and does not work with --server",
            code="NOT_ON_A_SERVER",
            hint="run it where the store is, with --config, --app or --store",
        )
    if settings.app is not None:
        return load_app(settings, settings.app)
    file = config_file(settings)
    if file is not None:
        check_exists(settings.store, need)
        return Runtime.from_config(file, store=settings.store)
    url = settings.store
    if url is None and need == "existing" and Path(DATABASE).exists():
        url = f"sqlite:///{DATABASE}"
    if url is None:
        raise ConfigError(
            f"there is no {CONFIG} in this directory, and no --config, --app or --store was given",
            code="NOTHING_NAMED",
            hint="create a project with perdure init, or name one: --config FILE, "
            "--app MODULE:NAME or --store sqlite:///perdure.db",
        )
    check_exists(url, need)
    return Runtime(url)


def load_app(settings: Settings, target: str) -> Runtime:
    """Return the runtime that --app names, not open yet. Raises ConfigError."""
    if settings.config is not None or settings.store is not None:
        raise ConfigError(
            "--app cannot be combined with --config or --store",
            code="OPTIONS_CLASH",
            hint="remove them: the Runtime in Python names its own store",
        )
    folder, _, ref = target.rpartition("/")
    module, colon, name = ref.partition(":")
    if not (module and colon and name):
        raise ConfigError(
            f"--app is {target!r}, which is not of the form MODULE:NAME or FOLDER/MODULE:NAME",
            code="APP_INVALID",
            hint="for runtime = Runtime(…) in shop.py, type --app shop:runtime",
        )
    try:
        loaded = load_object(ref, Path(f"{folder}/" if "/" in target else ".").absolute())
    except ConfigError as error:
        if error.code == "OBJECT_NOT_FOUND":
            error.hint = _runtimes_hint(module)
        raise
    if not isinstance(loaded, Runtime):
        raise ConfigError(
            f"{target} is not a Runtime; its type is {type(loaded).__name__}",
            code="APP_INVALID",
            hint=_runtimes_hint(module),
        )
    return loaded


def _runtimes_hint(module: str) -> str:
    """Return which Runtimes an imported module has, as options to type."""
    values = vars(sys.modules[module])
    names = sorted(name for name, value in values.items() if isinstance(value, Runtime))
    if names:
        return f"{module} has these: " + ", ".join(f"--app {module}:{name}" for name in names)
    return f"define a Runtime in {module}: runtime = Runtime(…, agents=[…])"


def check_exists(url: str | None, need: Need) -> None:
    """Raise ConfigError if the store does not exist: a mistyped name must not create one."""
    if url is None or need != "existing" or not url.startswith(("sqlite:///", "files:")):
        return
    path = url.removeprefix("sqlite:///").removeprefix("files:")
    if not Path(path).exists():
        raise ConfigError(
            f"there is no database {path!r}",
            code="STORE_NOT_FOUND",
            hint="check --store; perdure run, serve and worker create the database",
        )
