"""Planted bugs: the oracle finds each by the guarantee that it breaks, and nothing without it."""

import pytest
from tests.simulation.bugs import BUGS, planted
from tests.simulation.campaign import make_campaign

from perdure.testing.simulation.shrink import shrink
from perdure.testing.simulation.simulate import quiet_logs, run_seed

SHRUNK = (
    "the deadline of a lease is not checked",
    "interrupted calls are retried",
    "holders are reaped early",
)


def test_there_are_enough_bugs_and_few_need_many_seeds() -> None:
    assert len(BUGS) >= 25
    assert sum(bug.seed >= 300 for bug in BUGS.values()) <= 3


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    """SX.3 SX.4"""
    bug = BUGS[name]
    with quiet_logs():
        clean = run_seed(make_campaign, bug.seed, bug.kinds)
        with planted(name):
            outcome = run_seed(make_campaign, bug.seed, bug.kinds)
    assert clean.problems == []
    assert {problem.guarantee for problem in outcome.problems} & bug.guarantees


@pytest.mark.parametrize("name", SHRUNK)
def test_a_failure_is_shrunk_to_few_faults(name: str) -> None:
    bug = BUGS[name]
    with quiet_logs(), planted(name):
        failed = run_seed(make_campaign, bug.seed, bug.kinds)
        smallest = shrink(
            failed,
            lambda allowed: run_seed(make_campaign, bug.seed, bug.kinds, allowed=allowed),
        )
    assert len(smallest.fired) <= 5
    assert smallest.problems[0].guarantee == failed.problems[0].guarantee
