"""The store of a simulated fleet, and the connection through which each process sees it.

An operation happens outside of its process: a commit in flight may land after its process died.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from perdure.errors import StoreError
from perdure.store.base import Heads, Lease, Unavailable, Unknown, Write
from perdure.store.memory import MemoryStore
from perdure.store.shared.signal import Signal
from perdure.testing.simulation.faults import Faults
from perdure.testing.simulation.loop import Process, SimulatedLoop
from perdure.testing.simulation.machine import SimulatedClock

T = TypeVar("T")

STALL_S: Final = 6.0
UNANSWERED: Final = frozenset({"commit", "claim", "renew"})  # whose replies may get lost


class StoreEvents(Protocol):
    """Receiver of what happens at the store."""

    def operated(self, process: Process, operation: partial[Any], result: Any) -> None:
        """Note an operation that the store has performed for a process."""
        ...

    def undone(self, leases: list[Lease]) -> None:
        """Note claims of unanswered commits that the store has taken back."""
        ...

    def crash(self, process: Process, reason: str) -> None:
        """End a process."""
        ...

    def freeze(self, process: Process) -> None:
        """Stop a process for a while."""
        ...


class SharedStore:
    """The one store that all processes of a fleet share."""

    def __init__(
        self, loop: SimulatedLoop, clock: SimulatedClock, faults: Faults, events: StoreEvents
    ) -> None:
        self.loop = loop
        self.clock = clock
        self.faults = faults
        self.events = events
        self.memory = MemoryStore(clock)
        self.unavailable_until = 0.0
        self._connections: dict[int, ProcessConnection] = {}
        self._skews: dict[str, int] = {}  # in ms, by process

    @property
    def signal_count(self) -> int:
        """Number of changes that the store has signaled."""
        return self.memory._signal._count  # noqa: SLF001 - each process has a signal of its own

    def step_clock(self, by_ms: int) -> None:
        """Set the clock; leases end by elapsed time (decision 0057), and so they move with it."""
        self.clock.offset_ms += by_ms
        holders = self.memory._tables.holders  # noqa: SLF001 - no operation moves a lease
        for holder in holders:
            holders[holder] += by_ms

    def connect(self, process: Process) -> "ProcessConnection":
        """Return the connection of a process."""
        connection = self._connections[id(process)] = ProcessConnection(self, process)
        return connection

    def disconnect(self, process: Process) -> None:
        """Forget the connection of a dead process."""
        self._connections.pop(id(process), None)

    def disconnect_all(self) -> None:
        """Forget every connection."""
        self._connections.clear()

    def skew_ms(self, name: str) -> int:
        """Return by how much the clock of a process is wrong, at all of its starts."""
        if name not in self._skews:
            is_skewed = self.faults.happens("skewed clock", name, self.loop.time())
            value = self.faults.draws.fraction("skew", name)
            self._skews[name] = int(value * 600) - 300 if is_skewed else 0
        return self._skews[name]

    def signal(self) -> None:
        """Tell every process that something has changed; some hear of it late, twice or never."""
        for connection in tuple(self._connections.values()):
            connection.receive_signal()

    def send(self, topic: str, data: bytes) -> None:
        """Deliver a broadcast to every process."""
        for connection in tuple(self._connections.values()):
            connection.receive(topic, data)


class ProcessConnection:
    """Connection of one process, with latency both ways and with faults."""

    def __init__(self, shared: SharedStore, process: Process) -> None:
        self._shared = shared
        self._loop = shared.loop
        self._faults = shared.faults
        self._process = process
        self._signal = Signal()
        self._callbacks: list[Callable[[str, bytes], None]] = []
        self._unanswered: list[Lease] = []  # claims by commits whose replies were lost
        self._skew_ms = shared.skew_ms(process.name)

    def now(self) -> int:
        return self._shared.clock.now() + self._skew_ms

    async def perform(self, operation: partial[Coroutine[Any, Any, T]]) -> T:
        self._signal.mark_seen()
        name = operation.func.__name__
        reply: asyncio.Future[T] = self._loop.create_future()
        has_result = name == "commit" and _has_result(operation.args[0])
        if has_result and self._happens("crash before a result is recorded"):
            self._shared.events.crash(self._process, "before a result is recorded")
        elif name not in ("renew", "open") and self._happens("crash before an operation", name):
            self._shared.events.crash(self._process, f"before {name}")
        elif name != "open" and self._happens("freeze at an operation", name):
            self._shared.events.freeze(self._process)
        self._loop.later(self._latency("request"), self._apply, operation, name, reply)
        return await reply

    async def changed(self, timeout_s: float) -> None:
        await self._signal.wait(timeout_s)

    def broadcast(self, topic: str, data: bytes) -> None:
        for _ in range(self._copies("broadcast")):
            self._loop.later(self._latency("broadcast"), self._shared.send, topic, data)

    @contextmanager
    def subscribe(self, callback: Callable[[str, bytes], None]) -> Iterator[None]:
        self._callbacks.append(callback)
        try:
            yield
        finally:
            self._callbacks.remove(callback)

    async def close(self) -> None:
        """End the connection; the store stays."""

    def receive_signal(self) -> None:
        """Wake the tasks that wait for a change."""
        for _ in range(self._copies("signal")):
            self._in_process(self._latency("signal"), self._signal.notify)

    def receive(self, topic: str, data: bytes) -> None:
        """Call the subscribers in this process."""
        for callback in self._callbacks:
            self._in_process(0.0, callback, topic, data)

    # --- outside of the process -----------------------------------------------------------------

    def _apply(
        self, operation: partial[Coroutine[Any, Any, T]], name: str, reply: "asyncio.Future[T]"
    ) -> None:
        process, shared = self._process, self._shared
        if process.is_dead and (name != "commit" or not self._faults.has_late_commits):
            return  # nobody waits for it
        is_out = shared.unavailable_until > self._loop.time()
        if name != "open" and (is_out or self._happens("unavailable", name)):
            self._send(partial(_fail, reply, Unavailable("simulated: the store is unavailable")))
            return
        if name == "renew":
            self._undo_claims()
        if name == "reap":  # by the store's own clock: a skewed one is not asked
            operation = partial(operation.func, shared.clock.now())
        signals = shared.signal_count
        try:
            result = completed(operation())
        except (StoreError, ValueError) as error:
            self._send(partial(_fail, reply, error))
            return
        shared.events.operated(process, operation, result)
        if shared.signal_count != signals:
            shared.signal()
        if not process.is_dead:
            self._reply(name, result, reply)

    def _reply(self, name: str, result: T, reply: "asyncio.Future[T]") -> None:
        if name == "commit" and self._happens("crash after a commit"):
            self._shared.events.crash(self._process, "after a commit")
            return
        if name == "commit" and self._happens("freeze after a commit"):
            self._shared.events.freeze(self._process)
        leases = list(result.leases.values()) if isinstance(result, Heads) else []
        is_lost = name in UNANSWERED and self._happens("lost reply", name)
        if is_lost or (leases and self._happens("lost reply to a claim", "commit")):
            self._unanswered += leases
            self._send(partial(_fail, reply, Unknown("simulated: the reply was lost")))
            return
        self._send(partial(_succeed, reply, result))

    def _undo_claims(self) -> None:
        """Take back what unanswered commits have claimed, before the holder's row is extended."""
        leases, self._unanswered = self._unanswered, []
        if leases:
            memory = self._shared.memory
            changes = memory._tables.undo_claims(leases, memory.now())  # noqa: SLF001 - a backend's
            memory._apply_leases(changes)  # noqa: SLF001 - own work, which MemoryStore never needs
            self._shared.events.undone(leases)

    def _send(self, reply: Callable[[], None]) -> None:
        self._loop.later(self._latency("reply"), reply)

    def _in_process(self, delay_s: float, callback: Callable[..., None], *args: Any) -> None:
        if not self._process.is_dead:
            when = self._loop.time() + delay_s
            self._loop.call_at(when, callback, *args, context=self._process.context.copy())

    def _copies(self, place: str) -> int:
        return 0 if self._happens("lost signal", place) else 1 + self._happens("doubled signal")

    def _latency(self, place: str) -> float:
        draws, name = self._faults.draws, self._process.name
        if place in ("signal", "broadcast"):
            return draws.fraction(place, name) * (2.0 if self._happens("late signal") else 0.01)
        if self._happens("stall", place):
            return 2 + draws.fraction("stalled for", name) * (STALL_S - 2)
        return draws.fraction(place, name) * self._faults.latency_s

    def _happens(self, place: str, detail: str = "") -> bool:
        return self._faults.happens(place, self._process.name, self._loop.time(), detail)


def _has_result(writes: Sequence[Write]) -> bool:
    return any(record.type == "tool_result" for write in writes for record in write.records)


def completed(operation: Coroutine[Any, Any, T]) -> T:
    """Run an operation of the store in memory, which waits for nothing, and return its result."""
    try:
        operation.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("the store in memory has waited")


def _succeed(reply: "asyncio.Future[T]", result: T) -> None:
    if not reply.done():
        reply.set_result(result)


def _fail(reply: "asyncio.Future[Any]", error: Exception) -> None:
    if not reply.done():
        reply.set_exception(error)
