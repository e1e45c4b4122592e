"""Replay of the store operations of a simulated fleet on another backend."""

from functools import wraps
from typing import Any, NamedTuple

import pytest
from tests.simulation.campaign import make_campaign

from perdure.errors import StoreError
from perdure.store.base import Entry, Feed, Growth, Heads, Lease, Page, Record, Slice, Store
from perdure.store.memory import MemoryStore
from perdure.testing.simulation import store as simulated
from perdure.testing.simulation.simulate import run_seed

KINDS = ("crash", "freeze", "unavailable", "stall", "signal")  # without clocks that are set
OPERATIONS = (
    *("commit", "read", "get", "find", "find_listed", "entries_of", "streams"),
    *("claim", "reap", "renew", "tail", "growth"),
)


class Step(NamedTuple):
    """An operation, and its answer."""

    now: int
    name: str
    args: tuple[Any, ...]
    options: dict[str, Any]
    answer: Any


class HeldClock:
    """Clock that shows the time of the step that is replayed."""

    at = 0

    def now(self) -> int:
        return self.at


def tape_of(seed: int) -> list[Step]:
    """Run a seed and return its store operations in the order in which they were applied."""
    tape: list[Step] = []
    taped = type("TapedStore", (MemoryStore,), {name: _taped(name, tape) for name in OPERATIONS})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulated, "MemoryStore", taped)
        outcome = run_seed(make_campaign, seed, KINDS)
    assert not outcome.problems, outcome.problems[0]
    return tape


def _taped(name: str, tape: list[Step]) -> Any:
    method = getattr(MemoryStore, name)

    @wraps(method)
    async def taped(self: MemoryStore, *args: Any, **options: Any) -> Any:
        now, answer = self.now(), None
        try:
            answer = await method(self, *args, **options)
        except StoreError as error:
            answer = error
            raise
        finally:
            tape.append(Step(now, name, args, options, answer))
        return answer

    return taped


async def replay(tape: list[Step], store: Store, clock: HeldClock) -> list[str]:
    """Repeat the operations; return those that were answered differently."""
    differences = []
    cursors = {"": ""}  # of the other backend, by those of the memory store
    for number, step in enumerate(tape):
        clock.at = step.now
        args = step.args
        if step.name in ("tail", "growth") and args[0] != "$":
            args = (cursors[args[0]], *args[1:])
        try:
            answer: Any = await getattr(store, step.name)(*args, **step.options)
        except StoreError as error:
            answer = error
        if isinstance(answer, Feed | Growth) and isinstance(step.answer, Feed | Growth):
            cursors[step.answer.cursor] = answer.cursor
        if plain(answer) != plain(step.answer):
            text = f"{number}: {step.name}{args!r:.200}"
            differences.append(f"{text}\n  {plain(step.answer)}\n  {plain(answer)}")
    return differences


def plain(answer: Any) -> Any:
    """Return what must be equal on all backends."""
    match answer:
        case StoreError():
            return type(answer).__name__
        case Heads():
            return dict(answer), plain([*answer.leases.values()])
        case Slice():
            due = None if answer.holder else answer.due  # meaningless while it is held
            return [plain(item) for item in answer.records], answer.head, answer.holder, due
        case Page() | Feed():
            items = answer.entries if isinstance(answer, Page) else answer.records
            return [plain(item) for item in items]
        case list() | tuple():  # equally due streams are claimed in any order
            return sorted((plain(item) for item in answer), key=repr)
        case _:
            return _fields(answer)


def _fields(answer: Any) -> Any:
    match answer:
        case Lease():
            return answer.stream, answer.epoch, answer.holder, answer.head, answer.tries
        case Record():
            return answer.type, answer.data, answer.at, answer.seq
        case Entry():
            return answer.key, answer.version, answer.state, answer.due, answer.data, answer.listing
        case Growth():
            return dict(answer.heads)
        case _:
            return answer
