"""Planted bugs: the oracle finds each by the guarantee that it breaks, and nothing without it."""

from typing import Final

import pytest
from tests.simulation.bugs import BUGS, planted
from tests.simulation.campaign import make_campaign

from perdure.testing.simulation.shrink import shrink
from perdure.testing.simulation.simulate import quiet_logs, run_seed

MOST_SEEDS: Final = 300
MOST_FAULTS: Final = 5  # of a shrunk run
LONGEST_S: Final = 600.0  # of shrinking; it takes seconds, unless the machine is busy
SHRUNK = (
    "the deadline of a lease is not checked",
    "interrupted calls are retried",
    "holders are reaped early",
)


def test_there_are_enough_bugs_and_few_need_many_seeds() -> None:
    assert len(BUGS) >= 25
    assert sum(bug.seed >= MOST_SEEDS for bug in BUGS.values()) <= 3


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    """SX.3 SX.4"""
    seed = finding_seed(name)
    bug = BUGS[name]
    with quiet_logs():
        clean = run_seed(make_campaign, seed, bug.kinds)
    assert clean.problems == []


def finding_seed(name: str) -> int:
    """Return a seed that finds a bug: that of its row, or another if the engine has changed."""
    bug = BUGS[name]
    seeds: list[int] = [bug.seed, *range(MOST_SEEDS)]
    with quiet_logs(), planted(name):
        for seed in seeds:
            problems = run_seed(make_campaign, seed, bug.kinds).problems
            if {problem.guarantee for problem in problems} & bug.guarantees:
                return seed
    raise AssertionError(f"{MOST_SEEDS} seeds do not find that {name}")


@pytest.mark.parametrize("name", SHRUNK)
def test_a_failure_is_shrunk_to_few_faults(name: str) -> None:
    kinds, seed = BUGS[name].kinds, finding_seed(name)
    with quiet_logs(), planted(name):
        failed = run_seed(make_campaign, seed, kinds)
        smallest = shrink(
            failed, lambda allowed: run_seed(make_campaign, seed, kinds, allowed=allowed), LONGEST_S
        )
    assert len(smallest.fired) <= MOST_FAULTS < len(failed.fired)
    assert smallest.problems[0].guarantee == failed.problems[0].guarantee
