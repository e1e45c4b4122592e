"""Outcomes of a drive: which of them one commit records."""

from typing import Any

from perdure import Agent, Runtime, tool
from perdure.core.log.events import Progress
from perdure.runtime.engine.in_flight import BATCH_CHARS, InFlight, StartReturned, ToolReturned
from perdure.store.memory import MemoryStore
from perdure.testing import ScriptedModel


def in_flight(*outcomes: Any) -> InFlight:
    effects = InFlight()
    effects.outcomes += outcomes
    return effects


def test_facts_that_are_there_are_recorded_together() -> None:
    start = StartReturned("c2", Progress(pending_id="p_2", call_id="c2", returned=True))
    effects = in_flight(ToolReturned("c1", "one"), start)
    assert len(effects.next_outcomes()) == 2
    assert not effects.has_more_outcomes
    effects.outcomes.append(ToolReturned("c3", "three"))
    assert effects.has_more_outcomes
    effects.drop_outcomes()
    assert [outcome.call_id for outcome in effects.next_outcomes()] == ["c3"]


def test_large_results_are_recorded_apart() -> None:
    large = "x" * BATCH_CHARS
    effects = in_flight(ToolReturned("c1", large), ToolReturned("c2", large))
    assert len(effects.next_outcomes()) == 1


async def test_parallel_calls_need_far_fewer_commits_than_there_are_calls(
    monkeypatch: Any,
) -> None:
    @tool
    async def look(place: int) -> str:
        return f"at {place}"

    commits = []
    commit = MemoryStore.commit

    async def counted(self: MemoryStore, *args: Any, **options: Any) -> Any:
        commits.append(args)
        return await commit(self, *args, **options)

    monkeypatch.setattr(MemoryStore, "commit", counted)
    calls = [{"tool": "look", "args": {"place": place}} for place in range(640)]
    model = ScriptedModel([{"calls": calls}, {"text": "done"}])
    agent = Agent("a", model=model, tools=[look])
    async with Runtime("memory:", agents=[agent]) as rt:
        assert (await rt.session("s", agent=agent).run("go")).state == "completed"
    assert len(commits) < 160
    results = model.requests[-1].messages[-1]
    assert "at 639" in str(results)
