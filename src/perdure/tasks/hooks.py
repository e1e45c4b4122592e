"""Hooks of task lifecycles: user code before and after a task starts, completes or fails."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any, Final, get_args

import anyio
from anyio import to_thread

from perdure.errors import Conflict, Refused
from perdure.ids import secret_id
from perdure.user_code import UserCode, UserCodeError, error_line, loggable
from perdure.views.literals import HookType
from perdure.views.values import Duration, parse_duration

logger = logging.getLogger("perdure")

TYPES: Final[tuple[HookType, ...]] = get_args(HookType)
PRIORITY: Final = 10
TIMEOUT_S: Final = 30.0  # of one hook
_THREADS: Final = 8  # for sync hooks of one runtime; a hanging one keeps its thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A registered function; with `veto` its exception refuses the transition."""

    id: str
    type: HookType
    fn: Callable[..., Any]
    priority: int = PRIORITY
    registered_at: datetime
    veto: bool = False
    timeout: float = TIMEOUT_S  # seconds
    number: int = field(default=0, repr=False)  # the order of registration


def hook_type(name: object) -> HookType | None:
    """Return the type with this name, also if it is spelled as `beforeTaskStart`."""
    if not isinstance(name, str):
        return None
    plain = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
    return next((item for item in TYPES if item == plain), None)


class HookRegistry:
    """Hooks by type; a pass runs those that were registered when it began."""

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        self._hooks: dict[str, Hook] = {hook.id: hook for hook in hooks}
        self._numbers = count(len(self._hooks) + 1)

    def register(
        self,
        kind: HookType,
        fn: Callable[..., Any],
        priority: int = PRIORITY,
        *,
        veto: bool = False,
        timeout: Duration | None = None,
    ) -> str:
        """Add a hook and return its id. Raises Refused."""
        if not callable(fn):
            raise _invalid(f"a hook must be a function, not {type(fn).__name__}")
        if isinstance(priority, bool) or not isinstance(priority, int):
            text = ascii(priority)[:60]
            raise _invalid(f"the priority of a hook must be a whole number, not {text}")
        if veto and not kind.startswith("before"):
            raise _invalid(f"a hook {kind} runs after the transition, and cannot veto it")
        seconds = TIMEOUT_S if timeout is None else parse_duration(timeout) / 1000
        hook = Hook(
            id=secret_id("hook"),
            type=kind,
            fn=fn,
            priority=priority,
            registered_at=datetime.now(UTC),
            veto=veto,
            timeout=seconds,
            number=next(self._numbers),
        )
        self._hooks[hook.id] = hook
        return hook.id

    def unregister(self, hook_id: str) -> None:
        """Remove a hook; an unknown id is only logged."""
        if not isinstance(hook_id, str) or self._hooks.pop(hook_id, None) is None:
            logger.warning("there is no hook %.60r to unregister", hook_id)

    def all(self) -> list[Hook]:
        """Return every hook, in the order of registration."""
        return list(self._hooks.values())

    def of_type(self, name: object) -> list[Hook]:
        """Return the hooks of a type in the order in which they run; none of an unknown type."""
        kind = hook_type(name)
        return in_order(hook for hook in self._hooks.values() if hook.type == kind)


def in_order(hooks: Iterable[Hook]) -> list[Hook]:
    """Return hooks as they run: lower priorities first, equal ones as they were registered."""
    return sorted(hooks, key=lambda hook: (hook.priority, hook.registered_at, hook.number))


class HookRunner:
    """Runs the hooks of several registries, one after the other, each bounded in time."""

    def __init__(self, *registries: HookRegistry) -> None:
        self._registries = registries
        self._threads: anyio.CapacityLimiter | None = None

    def with_registry(self, registry: HookRegistry | None) -> "HookRunner":
        """Return a runner that runs the hooks of one more registry."""
        return self if registry is None else HookRunner(*self._registries, registry)

    async def run(self, kind: HookType, task_id: str, argument: Any) -> None:
        """Run the hooks of a type. Raises Conflict HOOK_VETO if one with a veto fails."""
        for hook in self._pass(kind):
            try:
                await self._call(hook, task_id, argument)
            except Exception as error:  # user code
                if hook.veto:
                    raise _vetoed(hook, task_id, error) from error
                logger.warning(
                    "hook %s of task %s failed, and is ignored: %s",
                    _hook_name(hook),
                    task_id,
                    error_line(error),
                    exc_info=loggable(error),
                )

    def _pass(self, kind: HookType) -> Sequence[Hook]:
        return in_order(hook for registry in self._registries for hook in registry.of_type(kind))

    async def _call(self, hook: Hook, task_id: str, argument: Any) -> None:
        """Run a hook beside its caller: one that ignores its cancellation is left behind."""
        running = asyncio.ensure_future(self._run(hook, task_id, argument))
        try:
            await asyncio.wait([running], timeout=hook.timeout)
        finally:
            if not running.done():
                running.cancel()
                running.add_done_callback(_forget_outcome)
        if not running.done():
            raise TimeoutError(f"it did not end within {hook.timeout:g} s")
        if running.cancelled():
            raise UserCodeError("it cancelled itself")
        running.result()

    async def _run(self, hook: Hook, task_id: str, argument: Any) -> None:
        with UserCode("hook", _hook_name(hook)):
            if inspect.iscoroutinefunction(hook.fn):
                await hook.fn(task_id, argument)
            else:
                await self._in_thread(hook, task_id, argument)

    async def _in_thread(self, hook: Hook, task_id: str, argument: Any) -> None:
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(_THREADS)
        call = partial(_contained, hook, task_id, argument)
        result = await to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._threads)
        if inspect.isawaitable(result):
            await result


def _forget_outcome(running: "asyncio.Future[None]") -> None:
    if not running.cancelled():
        running.exception()  # of a hook that nobody waits for any more


def _contained(hook: Hook, task_id: str, argument: Any) -> Any:
    with UserCode("hook", _hook_name(hook)):
        return hook.fn(task_id, argument)


def _hook_name(hook: Hook) -> str:
    name = getattr(hook.fn, "__qualname__", type(hook.fn).__qualname__)
    return f"{name} ({hook.type})"


def _vetoed(hook: Hook, task_id: str, error: Exception) -> Conflict:
    return Conflict(
        f"hook {_hook_name(hook)} vetoed the transition of task {task_id}: {error_line(error)}",
        code="HOOK_VETO",
        hint="nothing was changed; do what the hook asks for, and try again",
        details={"hook": hook.id, "type": hook.type},
    )


def _invalid(text: str) -> Refused:
    return Refused(text, code="INVALID_REQUEST", hint="pass a function with (task_id, argument)")
