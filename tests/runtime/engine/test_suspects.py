"""Sessions whose processes stopped: which of them a process drives at the same time.

Time is virtual: the response of a model takes one round, and a process that is killed drives for
less than that. What stores do when a process has died is `judge`'s rule.
"""

import pytest

from perdure.core.driver.plan import POISON_AFTER
from perdure.runtime.engine.leases import MORE_SUSPECTS, Suspects, is_suspect
from perdure.store.base import Lease, SuspectLimit
from perdure.store.judge import StreamRow, due_after_reaping, without_held

CHILDREN = 30


def lease(name: str, tries: int) -> Lease:
    return Lease(name, 1, "w", 1, tries, 0)


def taken(leases: list[Lease], limit: SuspectLimit) -> list[Lease]:
    """Return what a store leases of these; their tries count the claim."""
    due = [StreamRow("session", tries=item.tries - 1) for item in leases]
    rows = without_held(due, limit)
    return [item for item, row in zip(leases, due, strict=True) if any(row is r for r in rows)]


def claim(suspects: Suspects, due: list[Lease], most: int = CHILDREN) -> list[Lease]:
    with suspects.claiming(most) as limit:
        leases = taken(due, limit)
        suspects.start(leases)
    return leases


class Fleet:
    """Sessions that a worker drives in rounds, and how often each was claimed without a write."""

    def __init__(self, count: int, killer: str | None = None) -> None:
        self.tries = {f"s{number}": 0 for number in range(count)}
        self.due = dict.fromkeys(self.tries, 0)
        self.killer = killer
        self.now = 0  # ms
        self.completed: list[str] = []
        self.poisoned: list[str] = []

    def process(self, *, dies_before_a_write: bool = False) -> int:
        """Drive in one process until it dies or nothing is left; return its rounds."""
        suspects, rounds = Suspects(POISON_AFTER), 0
        while self.tries:
            driven = self._claim(suspects)
            if not driven:
                self.now = min(self.due.values(), default=self.now)
                continue
            rounds += 1
            if dies_before_a_write or self.killer in driven:
                self._die(driven)
                return rounds
            self._complete(suspects, driven)
        return rounds

    def _claim(self, suspects: Suspects) -> list[str]:
        ready = [name for name, due in self.due.items() if due <= self.now]
        driven = claim(suspects, [lease(name, self.tries[name] + 1) for name in ready])
        poisoned = [item.stream for item in driven if item.tries > POISON_AFTER]
        for name in poisoned:
            self._end(name, self.poisoned)
            suspects.drop(lease(name, 9))
        return [item.stream for item in driven if item.stream not in poisoned]

    def _die(self, driven: list[str]) -> None:
        for name in driven:
            self.tries[name] += 1
            self.due[name] = due_after_reaping(self.tries[name], self.now)

    def _complete(self, suspects: Suspects, driven: list[str]) -> None:
        for name in driven:
            suspects.clear(lease(name, self.tries[name] + 1))
            self._end(name, self.completed)

    def _end(self, name: str, ends: list[str]) -> None:
        ends.append(name)
        del self.tries[name], self.due[name]


@pytest.mark.parametrize("kills", range(16))
def test_after_many_kills_children_take_at_most_three_times_as_long(kills: int) -> None:
    """S1.23, S4.32: without a kill they take one round, and no pause."""
    fleet = Fleet(CHILDREN)
    for _ in range(kills):
        fleet.process(dies_before_a_write=True)
    assert fleet.process() <= (1 if kills < 2 else 3)
    assert (len(fleet.completed), fleet.poisoned, fleet.now) == (CHILDREN, [], 0)


@pytest.mark.parametrize("killer", [0, 1, 7, 29])
@pytest.mark.parametrize("kills", [0, 1, 10])
def test_a_session_that_kills_its_processes_is_isolated_among_others(
    killer: int, kills: int
) -> None:
    """S4.32: it fails after five processes of its own, and the others complete."""
    fleet = Fleet(CHILDREN, killer=f"s{killer}")
    for _ in range(kills):
        fleet.process(dies_before_a_write=True)
    deaths = 0
    while fleet.tries:
        fleet.process()
        deaths += 1
        assert deaths <= POISON_AFTER + 1
    assert fleet.poisoned == [f"s{killer}"]
    assert len(fleet.completed) == CHILDREN - 1


def test_two_suspects_are_claimed_until_one_of_them_has_written() -> None:
    """S4.32: what is not claimed is not counted if the process stops."""
    suspects = Suspects(POISON_AFTER)
    due = [lease(f"s{number}", 3) for number in range(CHILDREN)]
    assert all(map(is_suspect, due))
    driven = claim(suspects, due)
    assert driven == due[:2]
    assert claim(suspects, due[2:]) == []
    suspects.clear(driven[0])
    assert claim(suspects, due[2:]) == due[2 : 2 + MORE_SUSPECTS + 1]


def test_a_suspect_whose_next_stop_would_fail_it_is_driven_without_others() -> None:
    """S4.32: also while it runs, no other suspect starts."""
    suspects = Suspects(POISON_AFTER)
    last, final = lease("last", POISON_AFTER), lease("final", POISON_AFTER)
    other, innocent = lease("other", 3), lease("innocent", 1)
    assert claim(suspects, [last, other, innocent]) == [other, innocent]
    assert claim(suspects, [last]) == []
    suspects.clear(other)
    assert claim(suspects, [last, final]) == [last]
    assert claim(suspects, [other, innocent]) == [innocent]


def test_claims_at_the_same_time_take_no_more_suspects_than_may_be_driven() -> None:
    """S4.32: a program that drives its sessions itself claims each of them alone."""
    suspects = Suspects(POISON_AFTER)
    one, two = lease("one", 3), lease("two", 3)
    with suspects.claiming(1) as first, suspects.claiming(1) as second:
        assert taken([one], first) == [one]
        assert taken([two], second) == []  # the first may be the last try of one, which is alone
        suspects.start([one])
    with suspects.claiming(1) as first, suspects.claiming(1) as second:
        assert (first.most, second.most) == (1, 0)
