"""Replacement of the machine of simulated processes: virtual time, keyed chance, no threads."""

import asyncio
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from typing import Any

from anyio import to_thread

from perdure import host, ids
from perdure.testing.simulation.draws import Draws
from perdure.testing.simulation.loop import Misuse, SimulatedLoop, SimulatedTask, process_of
from perdure.user_code import running_code

NO_NETWORK = "the simulated loop has no network; pass a fake in deps"
STOPPED_TIME = "it sleeps, which stops virtual time; await asyncio.sleep in an async tool"


class SimulatedClock:
    """Wall clock of the store: virtual time, and the steps that faults make."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.offset_ms = 1_800_000_000_000

    def now(self) -> int:
        """Return its instant, in ms since 1970."""
        return self.offset_ms + int(self._loop.time() * 1_000)


def code_name() -> str:
    """Return the name of the user code that runs now."""
    code = running_code.get()
    return "the story" if code is None else f"{code.kind} {code.name}"


@contextmanager
def simulated_machine(
    loop: SimulatedLoop, clock: SimulatedClock, draws: Draws, misused: Callable[[str], None]
) -> Iterator[None]:
    """Replace what the runtime and its users take from the machine. Only one at a time."""

    def forbid(text: str, original: Any, *args: Any, **options: Any) -> Any:
        if process_of.get() is None:
            return original(*args, **options)
        misused(f"{code_name()}: {text}")
        raise Misuse(f"{code_name()}: {text}")

    def replaced(text: str, original: Any) -> Callable[..., Any]:
        return lambda *args, **options: forbid(text, original, *args, **options)

    chance = random.getstate()
    ids._last_id[:] = 0, 0  # noqa: SLF001 - an id depends on the one before
    SimulatedTask.numbers = count(1)
    with ExitStack() as stack:
        for name, value in _host(loop, clock, draws).items():
            _replace(stack, host, name, value)
        _replace(stack, asyncio, "Task", SimulatedTask)
        _replace(stack, to_thread, "run_sync", _call_inline)
        _replace(stack, time, "sleep", replaced(STOPPED_TIME, time.sleep))
        for name in ("connect", "connect_ex", "bind"):
            _replace(stack, socket.socket, name, replaced(NO_NETWORK, getattr(socket.socket, name)))
        for name in ("create_connection", "getaddrinfo"):
            _replace(stack, socket, name, replaced(NO_NETWORK, getattr(socket, name)))
        for name in _NETWORK:
            setattr(loop, name, partial(_refuse_network, misused))
        stack.callback(random.setstate, chance)
        random.seed(draws.bits(64, "seed of random"))
        yield


_NETWORK = (
    *("create_connection", "create_server", "create_datagram_endpoint", "getaddrinfo"),
    *("create_unix_connection", "create_unix_server", "sock_connect", "sock_sendall", "sock_recv"),
    *("subprocess_exec", "subprocess_shell", "connect_read_pipe", "connect_write_pipe"),
)


async def _refuse_network(misused: Callable[[str], None], *_: Any, **__: Any) -> None:
    misused(f"{code_name()}: {NO_NETWORK}")
    raise Misuse(f"{code_name()}: {NO_NETWORK}")


def _host(loop: SimulatedLoop, clock: SimulatedClock, draws: Draws) -> dict[str, Any]:
    """Return the replacement of each name in `host`."""

    def bits(count: int) -> int:
        return draws.bits(count, "bits", _process_name())

    return {
        "elapsed": loop.time,
        "instant_ns": lambda: clock.now() * 1_000_000,
        "random_bits": bits,
        "random_bytes": lambda count: bits(8 * count).to_bytes(count),
        "chance": lambda: draws.fraction("chance", _process_name()),
        "process_id": lambda: 1,
        "process_name": _process_name,
        "run_in_thread": _call_inline,
        "is_loop_watched": lambda: False,
    }


def _process_name() -> str:
    process = process_of.get()
    return "outside" if process is None else process.name


async def _call_inline(function: Callable[..., Any], *args: Any, **_: Any) -> Any:
    result = function(*args)
    await asyncio.sleep(0)
    return result


def _replace(stack: ExitStack, target: Any, name: str, value: Any) -> None:
    stack.callback(setattr, target, name, getattr(target, name))
    setattr(target, name, value)
