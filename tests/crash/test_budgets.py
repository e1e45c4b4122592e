"""A tree of sessions reaches its budget, and processes are killed: real processes, SIGKILL."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.budget_program import LIMIT
from tests.crash.harness import Forker, MakePlace, ended


class BudgetForker(Forker):
    program = "tests.crash.budget_program"


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    started = BudgetForker()
    yield started
    started.end()


@pytest.mark.parametrize("point", ["limit", "answered"])
def test_a_tree_at_its_limit_survives_a_kill_around_the_answer(
    point: str, places: MakePlace, forker: Forker
) -> None:
    folder = places().folder
    forker.kill(folder, "tree", at=point)
    assert forker.run(folder, "tree") == 0
    check(folder)


@pytest.mark.parametrize("number", range(4, 30, 5))
def test_a_tree_with_a_budget_survives_a_kill_after_any_write(
    number: int, tmp_path: Path, forker: Forker
) -> None:
    forker.kill(tmp_path, "tree", at=f"write:{number}")
    assert forker.run(tmp_path, "tree") == 0
    check(tmp_path)


def check(folder: Path) -> None:
    """Both children ended, one answer was enough, and every turn was counted once."""
    end = ended(folder)
    assert (end["state"], end["tasks"]) == ("completed", ["completed"] * 2)
    assert end["decisions"] == len(end["questions"])
    for question in end["questions"]:
        assert (question["reason"], question["budget"]["value"]) == ("budget", LIMIT)
        assert LIMIT <= question["budget"]["spent"]["turns"] <= LIMIT + 2
    assert end["turns"] == end["counted"]
