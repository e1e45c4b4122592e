"""Every order of claims, in commits and alone, of parks, deaths and reaps of two holders."""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pytest

from perdure.store import judge as judge_module
from perdure.store.base import Lease, Lost, Record, Release, StoreRefusal, Write
from perdure.store.judge import StreamRow, check_commit, judge
from perdure.store.shared.tables import LeaseChanges, Tables

STEPS: Final = 7
HOLDERS: Final = ("one", "two")
MESSAGE: Final = Record("user", b"")


class World(NamedTuple):
    """The row of the stream, the ends of the holders' rows, the time, and what holders know."""

    row: StreamRow | None
    until: tuple[int | None, ...]
    now: int
    leases: tuple[Lease | None, ...]  # that each holder believes to have
    lost: Lease | None  # of a commit whose reply was lost
    granted: int  # the last epoch that was granted

    def tables(self) -> Tables:
        """Return the tables of this state."""
        tables = Tables()
        if self.row is not None:
            tables.set_stream("s", self.row)
        ends = zip(HOLDERS, self.until, strict=True)
        tables.holders = {name: until for name, until in ends if until is not None}
        return tables

    def after(self, tables: Tables) -> "World":
        """Return the state with these tables."""
        row = tables.streams.get("s")
        until = tuple(map(tables.holders.get, HOLDERS))
        return self._replace(row=row, until=until)

    def grant(self, tables: Tables, holder: int, lease: Lease, *, is_lost: bool) -> "World":
        """Return the state after a claim was granted; the holder may not know of it."""
        assert lease.epoch > self.granted, "an epoch was granted twice"
        if is_lost:
            return self.after(tables)._replace(lost=lease, granted=lease.epoch)
        leases = tuple(lease if n == holder else old for n, old in enumerate(self.leases))
        return self.after(tables)._replace(leases=leases, granted=lease.epoch)


def _commit(world: World, write: Write, holder: int, *, is_lost: bool = False) -> World | None:
    tables = world.tables()
    commit = check_commit([write], (), ())
    alive = tables.alive(commit.claimants(), world.now)
    changes = judge(commit, tables.rows(commit), world.now, alive)
    if isinstance(changes, StoreRefusal):
        return None
    tables.apply_commit(changes)
    for lease in changes.leases.values():
        assert world.row is None or world.row.holder is None, "taken from its driver"
        return world.grant(tables, holder, lease, is_lost=is_lost)
    return None if is_lost else world.after(tables)


def _send(world: World, holder: int, *, is_lost: bool = False) -> World | None:
    name = HOLDERS[holder]
    create = "session" if world.row is None else None
    write = Write("s", [MESSAGE], create=create, wake=world.now, claim=name)
    return _commit(world, write, holder, is_lost=is_lost)


def _claim(world: World, holder: int) -> World | None:
    tables = world.tables()
    changes, leases = tables.claim(HOLDERS[holder], "session", 1, "s", None, world.now)
    tables.apply_leases(changes)
    if isinstance(leases, Lost) or not leases:
        return None
    return world.grant(tables, holder, leases[0], is_lost=False)


def _park(world: World, holder: int) -> World | None:
    lease = world.leases[holder]
    if lease is None or world.row is None:
        return None
    release = Write("s", fence=lease, head=world.row.head, release=Release())
    after = _commit(world, release, holder)
    rest = tuple(None if n == holder else old for n, old in enumerate(world.leases))
    return (after or world)._replace(leases=rest)  # a refused one knows that its lease is over


def _change(world: World, change: Callable[[Tables], LeaseChanges]) -> World:
    tables = world.tables()
    tables.apply_leases(change(tables))
    return world.after(tables)


def _renew(world: World, name: str, ttl_ms: int, *, join: bool) -> World:
    return _change(world, lambda tables: tables.renew(name, ttl_ms, join, world.now)[0])


def _undo(world: World) -> World | None:
    lost = world.lost
    if lost is None:
        return None
    return _change(world, lambda t: t.undo_claims([lost], world.now))._replace(lost=None)


def _steps(world: World) -> Iterator[World | None]:
    for holder, name in enumerate(HOLDERS):
        if world.until[holder] is None:
            yield _renew(world, name, 2, join=True)
        else:
            yield _renew(world, name, 0, join=False)
        yield _send(world, holder)
        yield _send(world, holder, is_lost=True) if world.lost is None else None
        yield _claim(world, holder)
        yield _park(world, holder)
    yield _undo(world)
    yield _change(world, lambda t: t.reap(world.now))
    yield world._replace(now=world.now + 1)


def _check(world: World) -> None:
    row = world.row
    if row is None or row.holder is None:
        return
    assert row.due is None, "held and due"
    assert world.until[HOLDERS.index(row.holder)] is not None, "held by nobody who can be reaped"
    known = world.leases[HOLDERS.index(row.holder)]
    knows = known is not None and known.epoch == row.epoch
    is_lost = world.lost is not None and world.lost.epoch == row.epoch
    assert knows or is_lost, "held, and nobody drives it or takes it back"


def _explore() -> int:
    first = World(None, (None, None), 0, (None, None), None, 0)
    known, edge = {first}, [first]
    for _ in range(STEPS):
        found = {after for world in edge for after in _steps(world) if after is not None} - known
        for world in found:
            _check(world)
        known |= found
        edge = list(found)
    return len(known)


def test_no_order_of_steps_leaves_a_stream_with_a_holder_that_nobody_reaps() -> None:
    """G5, G9: nor grants an epoch twice, nor takes a stream from its driver."""
    assert _explore() > 5_000


def _ignore_liveness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tables, "alive", lambda _self, names, _now: set(names))


def _keep_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = judge_module.row_after_claim
    keep = lambda row, holder: claim(row, holder)._replace(epoch=row.epoch)  # noqa: E731
    monkeypatch.setattr(judge_module, "row_after_claim", keep)


def _keep_due(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = judge_module.row_after_claim
    keep = lambda row, holder: claim(row, holder)._replace(due=row.due)  # noqa: E731
    monkeypatch.setattr(judge_module, "row_after_claim", keep)


def _steal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module, "is_claimable", lambda *_: True)


def _forget_undo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tables, "undo_claims", lambda *_: LeaseChanges({}, {}))


FAULTS: Final = {
    "held by nobody who can be reaped": _ignore_liveness,
    "an epoch was granted twice": _keep_epoch,
    "held and due": _keep_due,
    "taken from its driver": _steal,
    "nobody drives it or takes it back": _forget_undo,
}


@pytest.mark.parametrize("violation", FAULTS)
def test_the_model_finds_each_fault_that_is_planted(
    monkeypatch: pytest.MonkeyPatch, violation: str
) -> None:
    FAULTS[violation](monkeypatch)
    with pytest.raises(AssertionError, match=violation):
        _explore()
