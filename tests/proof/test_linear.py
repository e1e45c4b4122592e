"""G10: storage grows with what was said, not with what was said times the turns."""

import random
from pathlib import Path

import pytest

from perdure import Agent, Runtime, tool
from perdure.store.sqlite.store import SqliteStore
from perdure.testing import ScriptedModel

CONTENT = 2000  # bytes of each turn: text, arguments and result
OF_CONTENT = 1.3  # the whole file of 400 turns and more, with its schema
PER_TURN = 1.1  # what a turn adds
DENSE_PER_TURN = 1.2  # what a turn adds if its text barely compresses
OF_JSON = 1.1  # the whole file, compared with the JSON of its events
WORDS = "abcdefghijklmnopqrstuvwxyz     "
BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

_results: list[str] = []


@tool
def look(place: str) -> str:
    return _results.pop(0)


def script(turns: int, alphabet: str) -> ScriptedModel:
    """Turns whose parts have random sizes: rows that are all alike would fit pages by chance."""
    luck = random.Random(turns)  # noqa: S311 - chance, not a secret
    _results.clear()
    said = []

    def letters(number: int) -> str:
        return "".join(luck.choices(alphabet, k=number))

    for _ in range(turns):
        one, two = sorted(luck.sample(range(100, CONTENT - 100), 2))
        _results.append(letters(two - one))
        call = {"tool": "look", "args": {"place": letters(CONTENT - two)}}
        said.append({"text": letters(one), "calls": [call]})
    return ScriptedModel([*said, {"text": "done"}])


async def grown(database: Path, turns: int, alphabet: str = WORDS) -> tuple[int, int]:
    """By how many bytes so many turns let the checkpointed file grow, and its size then."""
    agent = Agent("a", model=script(turns, alphabet), tools=[look], max_turns=turns + 1)
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


async def test_a_file_is_about_as_large_as_its_events_even_if_text_barely_compresses(
    tmp_path: Path,
) -> None:
    """What compression saves is the form of events, not their content."""
    turns, database = 400, tmp_path / "dense.db"
    growth, whole = await grown(database, turns, BASE64)
    assert growth <= DENSE_PER_TURN * CONTENT * turns, growth / turns
    store = SqliteStore(database)
    await store.open()
    records = (await store.read((await store.tail("")).records[0].stream)).records
    await store.close()
    assert whole <= OF_JSON * sum(len(record.data) for record in records)
