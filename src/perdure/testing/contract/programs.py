"""Random programs of store operations, played on a backend and on the memory store.

Needs hypothesis: `@given(programs())`, then `anyio.run(play, make_harness, program)`.
"""

from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from perdure.errors import StoreError
from perdure.store.base import (
    DELETE,
    Check,
    HeadMoved,
    Heads,
    Lease,
    Put,
    Record,
    Release,
    Store,
    StoreRefusal,
    SuspectLimit,
    VersionMoved,
    Write,
)
from perdure.store.memory import MemoryStore
from perdure.testing.contract.harness import MakeHarness

STREAMS, KEYS, HOLDERS = ("a", "b", "c"), ("k", "l"), ("one", "two")
KINDS, ENTRY_KINDS, STATES = ("session", "delivery"), ("pending", "mail"), ("open", "settled")


@dataclass(frozen=True, slots=True)
class WriteStep:
    """Write whose lease and head are filled in from the reference."""

    stream: str
    records: int
    create: str | None
    fenced: bool
    head: int | None  # relative to the real one
    wake: int | None  # relative to now
    release: int | None
    erase: bool
    claim: str | None


@dataclass(frozen=True, slots=True)
class PutStep:
    """Put or check whose version is filled in from the reference."""

    kind: str
    key: str
    stream: str
    off: int  # relative to the real version
    state: str
    due: int | None
    data: bytes | None  # None: delete
    is_check: bool


@dataclass(frozen=True, slots=True)
class CommitStep:
    """One commit."""

    writes: tuple[WriteStep, ...]
    puts: tuple[PutStep, ...]


@dataclass(frozen=True, slots=True)
class ClaimStep:
    """One claim, of one stream or of all."""

    holder: str
    kind: str
    only: str | None
    suspects: SuspectLimit | None


@dataclass(frozen=True, slots=True)
class ReapStep:
    """One reap."""

    offset_ms: int  # relative to now


@dataclass(frozen=True, slots=True)
class RenewStep:
    """One heartbeat: an extension, a join or a removal."""

    holder: str
    ttl_ms: int
    join: bool


@dataclass(frozen=True, slots=True)
class WaitStep:
    """Advance of the clock."""

    milliseconds: int


Step = CommitStep | ClaimStep | ReapStep | RenewStep | WaitStep

_some_instants = st.sampled_from((-1000, -1, 0, 1, 5000))
_mostly_right = st.sampled_from((0, 0, 0, 0, -1, 1))
_writes = st.builds(
    WriteStep,
    stream=st.sampled_from(STREAMS),
    records=st.integers(0, 2),
    create=st.sampled_from((None, *KINDS)),
    fenced=st.booleans(),
    head=st.none() | _mostly_right,
    wake=st.none() | _some_instants,
    release=st.none() | _some_instants,
    erase=st.sampled_from((False, False, False, False, False, True)),
    claim=st.sampled_from((None, *HOLDERS)),
)
_puts = st.builds(
    PutStep,
    kind=st.sampled_from(ENTRY_KINDS),
    key=st.sampled_from(KEYS),
    stream=st.sampled_from(STREAMS),
    off=_mostly_right,
    state=st.sampled_from(STATES),
    due=st.none() | _some_instants,
    data=st.sampled_from((b"", b"x", None)),
    is_check=st.booleans(),
)
_commits = st.builds(
    CommitStep,
    writes=st.lists(_writes, min_size=1, max_size=2).map(tuple),
    puts=st.lists(_puts, max_size=2).map(tuple),
)
_claims = st.builds(
    ClaimStep,
    holder=st.sampled_from(HOLDERS),
    kind=st.sampled_from(KINDS),
    only=st.sampled_from((None, None, *STREAMS)),
    # All or none: of equal suspects, a store may take any.
    suspects=st.sampled_from((None, None, SuspectLimit(0, 9), SuspectLimit(9, 3))),
)
_reaps = st.builds(ReapStep, offset_ms=st.sampled_from((-1000, 0, 0)))
_renewals = st.builds(
    RenewStep,
    holder=st.sampled_from(HOLDERS),
    ttl_ms=st.sampled_from((0, 1000, 60_000)),
    join=st.booleans(),
)
_waits = st.builds(WaitStep, milliseconds=st.sampled_from((1, 1000, 60_000)))


def programs() -> st.SearchStrategy[list[Step]]:
    """Generate programs that create, drive, put, erase, reap and wait."""
    steps = _commits | _commits | _claims | _reaps | _renewals | _waits
    return st.lists(steps, min_size=5, max_size=40)


async def play(make: MakeHarness, program: Sequence[Step]) -> None:
    """Play the program on a new backend and on the reference; all results must be equal."""
    async with make() as harness:
        reference = MemoryStore(harness.clock)
        await reference.open()
        backend = await harness.open()
        leases: dict[str, Lease] = {}
        for step in program:
            if isinstance(step, WaitStep):
                harness.clock.advance(step.milliseconds)
                continue
            call = await _concrete(step, reference, leases)
            expected = await _outcome(call.on(reference))
            actual = await _outcome(call.on(backend))
            assert actual == expected, f"{call}: {actual} instead of {expected}"
            leases.update({lease.stream: lease for lease in _granted(expected)})
        assert await _everything(backend) == await _everything(reference)


@dataclass(frozen=True, slots=True)
class _Call:
    method: str
    args: tuple[Any, ...]
    keywords: dict[str, Any]

    def on(self, store: Store) -> Awaitable[Any]:
        result: Awaitable[Any] = getattr(store, self.method)(*self.args, **self.keywords)
        return result


async def _concrete(step: Step, reference: Store, leases: dict[str, Lease]) -> _Call:
    match step:
        case ClaimStep():
            options = {"only": step.only, "suspects": step.suspects}
            return _Call("claim", (step.holder, step.kind, 100), options)
        case ReapStep():
            return _Call("reap", (reference.now() + step.offset_ms,), {})
        case RenewStep():
            return _Call("renew", (step.holder, step.ttl_ms), {"join": step.join})
        case CommitStep():
            now = reference.now()
            writes = [await _write(step_, reference, leases, now) for step_ in step.writes]
            items = [await _put(step_, reference, now) for step_ in step.puts]
            puts = [item for item in items if isinstance(item, Put)]
            checks = [item for item in items if isinstance(item, Check)]
            return _Call("commit", (writes, puts, checks), {})
        case _:
            raise TypeError(f"{step} is not a store operation")


async def _write(step: WriteStep, reference: Store, leases: dict[str, Lease], now: int) -> Write:
    try:
        head = (await reference.read(step.stream, limit=0)).head
    except StoreRefusal:
        head = 0
    is_erase, fence = step.erase, leases.get(step.stream) if step.fenced else None
    return Write(
        step.stream,
        [Record("t", b"d", n) for n in range(0 if is_erase else step.records)],
        fence=fence,
        head=None if step.head is None else head + step.head,
        create=None if is_erase else step.create,
        wake=None if is_erase or step.wake is None else now + step.wake,
        release=None if is_erase or step.release is None else Release(now + step.release),
        erase=is_erase,
        claim=None if is_erase or fence is not None else step.claim,
    )


async def _put(step: PutStep, reference: Store, now: int) -> Put | Check:
    entry = await reference.get(step.kind, step.key)
    expect = (entry.version if entry is not None else 0) + step.off
    if step.is_check:
        return Check(step.kind, step.key, expect, step.stream)
    due = None if step.due is None else now + step.due
    data = DELETE if step.data is None else step.data
    listing = step.state if step.due is None or step.due % 2 else None  # some are in none
    at = None if step.due is None else now - step.due
    return Put(step.kind, step.key, expect, step.stream, step.state, due, data, listing, at)


async def _outcome(attempt: Awaitable[Any]) -> Any:
    """Return the result or the error of an operation in a form that can be compared."""
    try:
        result = await attempt
    except (StoreError, ValueError) as error:
        head = error.head if isinstance(error, HeadMoved) else None
        entry = error.entry if isinstance(error, VersionMoved) else None
        return type(error), getattr(error, "stream", None), head, entry
    if isinstance(result, list):  # the order of streams that are due at the same time may differ
        return sorted(result, key=lambda lease: lease.stream)
    if isinstance(result, Heads):
        return dict(result), dict(result.leases)
    return result


def _granted(outcome: Any) -> Iterable[Lease]:
    """Return the leases in the outcome of a claim or a commit."""
    match outcome:
        case list():
            return outcome
        case (dict(), dict() as leases):
            return leases.values()
        case _:
            return ()


async def _everything(store: Store) -> list[Any]:
    """Return everything that a store holds, except positions, which differ between backends."""
    content: list[Any] = []
    for stream in STREAMS:
        slice_ = await _outcome(store.read(stream))
        content.append(slice_ if isinstance(slice_, tuple) else _without_positions(slice_.records))
        content.append(await _outcome(store.read(stream, limit=0)))
    for kind in ENTRY_KINDS:
        pages = [
            await store.find(kind),
            await store.find(kind, state="open"),
            await store.find(kind, skip=2),
            await store.find(kind, stream="a"),
            await store.find(kind, due_before=store.now()),
            await store.find(kind, state="open", due_before=store.now(), limit=1),
            await store.find_listed(kind, "open", order="newest"),
            await store.find_listed(kind, "open", order="due"),
        ]
        content += [page.entries for page in pages]
    content += [list(await store.entries_of(stream)) for stream in STREAMS]
    content.append(list(await store.streams()))
    census = await store.census(ENTRY_KINDS)
    content += [
        census.entries,
        census.listings,
        census.overdue,
        census.held,
        census.due,
        census.alive,
    ]
    content.append(sorted(_without_positions((await store.tail("")).records)))
    return content


def _without_positions(records: Sequence[Record]) -> list[tuple[str, int, int, str, bytes]]:
    return [(r.stream, r.seq, r.at, r.type, r.data) for r in records]
