"""What the contract suite needs of a backend, and the capabilities it asks about."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from perdure.store.base import Store

REQUIRED = {
    "commit": "records and entries are written together, under conditions, or not at all",
    "entries": "entries are found by key, state, stream and due time, page by page",
    "leases": "a stream has one driver; dead drivers are reaped and fenced",
    "erase": "an erased stream takes nothing, and nothing of it is found",
    "feed": "every record is seen once by whoever follows the feed",
    "hints": "whoever waits for a change is woken by one",
}
OPTIONAL = {
    "durable": "what was acknowledged is there after closing and opening again",
    "whispers": "what is whispered reaches those who listen then, unless it gets lost",
    "shared": "several stores may be open on the same data, as in several processes",
}


class HandClock:
    """A clock that stands still until it is moved."""

    def __init__(self, start: int = 1_700_000_000_000) -> None:
        self._now = start

    def now(self) -> int:
        """The instant it was moved to."""
        return self._now

    def advance(self, milliseconds: int) -> None:
        """Move it."""
        self._now += milliseconds


class Harness(Protocol):
    """One backend with one set of data, empty at first."""

    @property
    def clock(self) -> HandClock:
        """The clock that the backend's stores were given."""
        ...

    @property
    def capabilities(self) -> frozenset[str]:
        """Which of OPTIONAL the backend has; the REQUIRED ones cannot be declared away."""
        ...

    async def open(self) -> Store:
        """A store on the data. While one is open, another is asked for only if it is "shared".

        The harness closes at its end what the case has not closed.
        """
        ...


MakeHarness = Callable[[], AbstractAsyncContextManager[Harness]]


@dataclass(frozen=True, slots=True)
class Case:
    """One promise, as a test that takes a harness."""

    name: str
    capability: str
    play: Callable[[Harness], Awaitable[None]]

    @property
    def required(self) -> bool:
        """Whether every backend must keep it."""
        return self.capability in REQUIRED

    def applies_to(self, harness: Harness) -> bool:
        """Whether this backend must keep it."""
        unknown = harness.capabilities - OPTIONAL.keys()
        if unknown:
            raise ValueError(f"there is no optional capability {', '.join(sorted(unknown))}")
        return self.required or self.capability in harness.capabilities


class Cases:
    """The cases of one module, in the order they are written."""

    def __init__(self) -> None:
        self.all: list[Case] = []

    def of(
        self, capability: str
    ) -> Callable[[Callable[[Harness], Awaitable[None]]], Callable[[Harness], Awaitable[None]]]:
        """Add the decorated function as a case of this capability."""
        if capability not in REQUIRED | OPTIONAL:
            raise ValueError(f"there is no capability {capability}")

        def add(play: Callable[[Harness], Awaitable[None]]) -> Callable[[Harness], Awaitable[None]]:
            self.all.append(Case(play.__name__, capability, play))
            return play

        return add
