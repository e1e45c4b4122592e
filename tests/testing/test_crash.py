"""crash_after: as kill -9, inside one process."""

from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Runtime, tool
from perdure.store.base import Store
from perdure.store.memory import MemoryStore
from perdure.store.sqlite.store import SqliteStore
from perdure.testing import Crashed, ScriptedModel, crash_after

TURNS: list[dict[str, Any]] = [{"calls": [{"tool": "pay"}]}, {"text": "paid"}]


def paying(paid: list[str]) -> Agent:
    @tool
    def pay() -> str:
        paid.append("paid")
        return "ok"

    return Agent("cashier", model=ScriptedModel(TURNS), tools=[pay])


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "h.db")


async def test_after_the_crash_nothing_is_written_and_the_next_runtime_goes_on(
    store: Store,
) -> None:
    paid: list[str] = []
    agent = paying(paid)
    with pytest.raises(Crashed), crash_after(commits=3) as crash:
        async with Runtime(store, agents=[agent]) as rt:
            await rt.session("s", agent=agent).run("pay", key="k")
    assert len(crash.commits) == 3
    assert crash.commits[2] == "tool_result"
    async with Runtime(store, agents=[agent]) as rt:
        head = (await rt.session("s").get()).seq
        assert (await rt.session("s").events())[-1].type == "tool_result"
        result = await rt.session("s", agent=agent).run("pay", key="k", timeout=5)
        assert (result.output, paid) == ("paid", ["paid"])
        assert result.seq > head


async def test_an_effect_that_was_only_intended_is_told_and_not_repeated(store: Store) -> None:
    paid: list[str] = []
    agent = paying(paid)
    with pytest.raises(Crashed), crash_after(commits=2):
        async with Runtime(store, agents=[agent]) as rt:
            await rt.session("s", agent=agent).run("pay", key="k")
    async with Runtime(store, agents=[agent]) as rt:
        assert (await rt.session("s", agent=agent).run("pay", key="k")).output == "paid"
        (told,) = [e for e in await rt.session("s").events() if e.type == "tool_result"]
        assert (told.data["interrupted"], paid) == (True, [])


async def test_no_handler_in_a_tool_survives_it() -> None:
    swallowed: list[Exception] = []

    @tool
    async def note(text: str) -> str:
        try:
            await runtimes[0].session("other", agent="clerk").send(text, key="k")
        except Exception as error:  # noqa: BLE001 - this is what users write
            swallowed.append(error)
        return "noted"

    turns: list[dict[str, Any]] = [{"calls": [{"tool": "note", "args": {"text": "hi"}}]}]
    agent = Agent("clerk", model=ScriptedModel(turns), tools=[note])
    runtimes: list[Runtime] = []
    with crash_after(commits=3) as crash:
        rt = Runtime("memory:", agents=[agent])
    runtimes.append(rt)
    with pytest.raises(Crashed):
        async with rt:
            await rt.session("s", agent=agent).run("go", key="k")
    assert crash.commits[2] == "user"
    assert swallowed == []


async def test_whatever_awaits_is_told_also_after_the_crash() -> None:
    agent = paying([])
    with crash_after(commits=1):
        rt = Runtime("memory:", agents=[agent])
        await rt.__aenter__()
        with pytest.raises(Crashed):
            await rt.session("s", agent=agent).send("pay")
        with pytest.raises(Crashed):
            await rt.session("s").get()
        with pytest.raises(Crashed):
            await rt.approve("p_1", by="ana")
        with pytest.raises(Crashed):
            await rt.work(once=True)
        await rt.__aexit__(None, None, None)


async def test_a_worker_dies_with_its_process() -> None:
    agent = paying([])

    async def watch() -> None:
        async with Runtime("memory:", agents=[agent], worker=True) as rt:
            await rt.session("s", agent=agent).send("pay")
            async for _ in rt.stream(session="s", after=0):
                pass

    with pytest.raises(Crashed), crash_after(commits=2):
        await watch()


async def test_outside_of_the_block_nothing_dies() -> None:
    agent = paying([])
    with crash_after(commits=1):
        pass
    async with Runtime("memory:", agents=[agent]) as rt:
        assert (await rt.session("s", agent=agent).run("pay")).output == "paid"


def test_a_crash_comes_after_at_least_one_commit() -> None:
    with pytest.raises(ValueError, match="must be 1 or more"), crash_after(commits=0):
        pass
