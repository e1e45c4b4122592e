"""Sessions whose processes stopped: which of them a process drives at the same time.

Time is virtual: the response of a model takes one round, and a process that is killed drives for
less than that. What stores do when a process has died is `judge`'s rule.
"""

import pytest

from perdure.core.driver.plan import POISON_AFTER
from perdure.runtime.engine.leases import MORE_SUSPECTS, Suspects, is_suspect
from perdure.store.base import Lease
from perdure.store.judge import due_after_reaping

CHILDREN = 30


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
        leases = [Lease(name, 1, "w", 1, self.tries[name] + 1, 0) for name in ready]
        driven, _ = suspects.split(leases)
        poisoned = [lease.stream for lease in driven if lease.tries > POISON_AFTER]
        for name in poisoned:
            self._end(name, self.poisoned)
            suspects.drop(Lease(name, 1, "w", 1, 9, 0))
        return [lease.stream for lease in driven if lease.stream not in poisoned]

    def _die(self, driven: list[str]) -> None:
        for name in driven:
            self.tries[name] += 1
            self.due[name] = due_after_reaping(self.tries[name], self.now)

    def _complete(self, suspects: Suspects, driven: list[str]) -> None:
        for name in driven:
            suspects.clear(Lease(name, 1, "w", 1, self.tries[name] + 1, 0))
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


def test_two_suspects_are_driven_until_one_of_them_has_written() -> None:
    """S4.32"""
    suspects = Suspects(POISON_AFTER)
    leases = [Lease(f"s{number}", 1, "w", 1, 3, 0) for number in range(CHILDREN)]
    assert all(map(is_suspect, leases))
    driven, others = suspects.split(leases)
    assert (len(driven), len(others)) == (2, CHILDREN - 2)
    assert not suspects.may_claim()
    assert not suspects.may_claim(only=others[0].stream)
    suspects.clear(driven[0])
    assert suspects.may_claim()
    more, others = suspects.split(others)
    assert len(more) == MORE_SUSPECTS + 1


def test_a_suspect_whose_next_stop_would_fail_it_is_driven_without_others() -> None:
    """S4.32: also while it runs, no other suspect starts."""
    suspects = Suspects(POISON_AFTER)
    last = Lease("last", 1, "w", 1, POISON_AFTER, 0)
    other, innocent = Lease("other", 1, "w", 1, 3, 0), Lease("innocent", 1, "w", 1, 1, 0)
    driven, held = suspects.split([last, other, innocent])
    assert ([item.stream for item in driven], held) == (["other", "innocent"], [last])
    suspects.clear(other)
    assert suspects.split([last]) == ([last], [])
    assert suspects.split([other, innocent]) == ([innocent], [other])


def test_nothing_is_claimed_beside_a_suspect_that_has_just_been_started() -> None:
    """S4.32: a claim that must be returned is counted, if the process stops before that."""
    suspects = Suspects(POISON_AFTER)
    first = Lease("first", 1, "w", 1, 3, 0)
    assert suspects.may_claim()
    suspects.split([first])
    assert not suspects.may_claim()
    assert suspects.may_claim(only="second")  # two may be driven
    suspects.drop(first)
    assert suspects.may_claim()
    suspects.split([Lease("last", 1, "w", 1, POISON_AFTER, 0)])
    assert not suspects.may_claim(only="second")
