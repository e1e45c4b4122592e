"""G10: storage grows with what was said, not with what was said times the turns."""

import random
from pathlib import Path

import pytest

from perdure import Agent, Runtime, tool
from perdure.testing import ScriptedModel

CONTENT = 2000  # bytes of each turn: text, arguments and result
OF_CONTENT = 1.3  # the whole file of 400 turns and more, with its schema
PER_TURN = 1.1  # what a turn adds

_results: list[str] = []


@tool
def look(place: str) -> str:
    return _results.pop(0)


def letters(luck: random.Random, number: int) -> str:
    return "".join(luck.choices("abcdefghijklmnopqrstuvwxyz     ", k=number))


def script(turns: int) -> ScriptedModel:
    """Turns whose parts have random sizes: rows that are all alike would fit pages by chance."""
    luck = random.Random(turns)  # noqa: S311 - chance, not a secret
    _results.clear()
    said = []
    for _ in range(turns):
        one, two = sorted(luck.sample(range(100, CONTENT - 100), 2))
        _results.append(letters(luck, two - one))
        call = {"tool": "look", "args": {"place": letters(luck, CONTENT - two)}}
        said.append({"text": letters(luck, one), "calls": [call]})
    return ScriptedModel([*said, {"text": "done"}])


async def grown(database: Path, turns: int) -> tuple[int, int]:
    """By how many bytes so many turns let the checkpointed file grow, and its size then."""
    agent = Agent("a", model=script(turns), tools=[look], max_turns=turns + 1)
    async with Runtime(f"sqlite:///{database}", agents=[agent]):
        pass
    empty = size(database)
    async with Runtime(f"sqlite:///{database}", agents=[agent]) as rt:
        assert (await rt.session("s", agent=agent).run("go")).state == "completed"
    return size(database) - empty, size(database)


def size(database: Path) -> int:
    """The file's, with nothing beside it."""
    assert not database.with_name(f"{database.name}-wal").exists()
    return database.stat().st_size


SOAK = pytest.param(400, 1600, marks=pytest.mark.soak)


@pytest.mark.parametrize("short, long", [(100, 400), SOAK])
async def test_a_turn_costs_as_much_in_a_long_session_as_in_a_short_one(
    tmp_path: Path, short: int, long: int
) -> None:
    per_turn = []
    for turns in (short, long):
        growth, whole = await grown(tmp_path / f"{turns}.db", turns)
        assert growth <= PER_TURN * CONTENT * turns, (turns, growth / turns)
        assert turns < 400 or whole <= OF_CONTENT * CONTENT * turns, (turns, whole / turns)
        per_turn.append(growth / turns)
    assert per_turn[1] == pytest.approx(per_turn[0], rel=0.03), per_turn
