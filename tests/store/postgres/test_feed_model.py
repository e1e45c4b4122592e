"""The rule of the PostgreSQL feed in every interleaving, and each fault that it prevents."""

import pytest
from tests.store.postgres.feed_model import BUGS, Scenario, Violation, explore

SCENARIOS = {
    "three writers": Scenario((1, 1, 1), readers=(0,)),
    "two readers": Scenario((1, 1), readers=(0, 0), rows=(2,), has_rollbacks=False),
    "two positions": Scenario((2, 1), readers=(0,), crashes=1, restarts=1),
    "the end": Scenario((1, 1), readers=(None,), restarts=1),
    "a stream": Scenario(
        (1, 1), readers=(None, 0), rows=(2,), is_stream=True, is_shared=False, has_rollbacks=False
    ),
    "a stream after a restart": Scenario((1, 1), readers=(None, 0), restarts=1, is_stream=True),
}
FINDS = {
    "snapshots": "three writers",
    "snapshot_end": "the end",
    "buffer_ahead": "a stream",
    "not_told": "a stream",
    "late_bound": "two readers",
    "late_visible": "the end",
    "unordered": "two readers",
    "position_first": "three writers",
    "lock_first": "three writers",
}
MESSAGES = r"passed|can still be committed|stopped before the end"


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_interleaving_makes_a_reader_miss_a_record(name: str) -> None:
    assert explore(SCENARIOS[name]) > 100


@pytest.mark.parametrize("bug", BUGS)
def test_the_model_finds_each_fault_that_is_planted(bug: str) -> None:
    with pytest.raises(Violation, match=MESSAGES):
        explore(SCENARIOS[FINDS[bug]], bug)
