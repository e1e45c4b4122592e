"""Interface between the contract suite and a backend, and the capabilities of backends."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from perdure.store.base import Store

REQUIRED = {
    "commit": "records and entries are written together, under conditions, or not at all",
    "entries": "entries are found by key, state, stream and due time, page by page",
    "leases": "a stream has one driver; dead holders are reaped and fenced",
    "erase": "an erased stream accepts no write, and nothing of it is found",
    "feed": "a reader of the feed gets every record once",
    "hints": "a change wakes the tasks that wait for one",
}
OPTIONAL = {
    "durable": "acknowledged commits are there after closing and opening again",
    "broadcasts": "a broadcast reaches the present subscribers, unless it gets lost",
    "shared": "several stores may be open on the same data, as in several processes",
}


class HandClock:
    """Clock that stands still until `advance` moves it."""

    def __init__(self, start: int = 1_700_000_000_000) -> None:
        self._now = start

    def now(self) -> int:
        """Return the instant that it was moved to."""
        return self._now

    def advance(self, milliseconds: int) -> None:
        """Move the clock forward."""
        self._now += milliseconds


class Harness(Protocol):
    """One backend with its own data, which is empty at first."""

    @property
    def clock(self) -> HandClock:
        """The clock of the backend's stores."""
        ...

    @property
    def capabilities(self) -> frozenset[str]:
        """The OPTIONAL capabilities of the backend; it must have all REQUIRED ones."""
        ...

    async def open(self) -> Store:
        """Open a store on the data; a second one only if the backend is "shared".

        At its end the harness closes the stores that the case has not closed.
        """
        ...


MakeHarness = Callable[[], AbstractAsyncContextManager[Harness]]


@dataclass(frozen=True, slots=True)
class Case:
    """One rule of the contract, as a test that takes a harness."""

    name: str
    capability: str
    play: Callable[[Harness], Awaitable[None]]

    @property
    def required(self) -> bool:
        """Every backend must pass the case."""
        return self.capability in REQUIRED

    def applies_to(self, harness: Harness) -> bool:
        """Return whether this backend must pass the case. Raises ValueError."""
        unknown = harness.capabilities - OPTIONAL.keys()
        if unknown:
            raise ValueError(f"there is no optional capability {', '.join(sorted(unknown))}")
        return self.required or self.capability in harness.capabilities


class Cases:
    """Cases of one module, in the order of their definitions."""

    def __init__(self) -> None:
        self.all: list[Case] = []

    def case(
        self, capability: str
    ) -> Callable[[Callable[[Harness], Awaitable[None]]], Callable[[Harness], Awaitable[None]]]:
        """Register the decorated function as a case of this capability."""
        if capability not in REQUIRED | OPTIONAL:
            raise ValueError(f"there is no capability {capability}")

        def add(play: Callable[[Harness], Awaitable[None]]) -> Callable[[Harness], Awaitable[None]]:
            self.all.append(Case(play.__name__, capability, play))
            return play

        return add
