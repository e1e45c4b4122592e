"""A store that writes, and whose answer is lost: the driver reads back what it wrote."""

from collections.abc import Sequence

import pytest

from perdure import Agent, Runtime, tool
from perdure.store.base import Check, Heads, Put, Unknown, Write
from perdure.store.memory import MemoryStore
from perdure.testing import ScriptedModel


class Forgetful(MemoryStore):
    """Loses the answer to the first commit with such a record."""

    def __init__(self, type_: str) -> None:
        super().__init__()
        self._lost: str | None = type_

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> Heads:
        heads = await super().commit(writes, puts, checks)
        if self._lost in {record.type for write in writes for record in write.records}:
            self._lost = None
            raise Unknown("the answer was lost")
        return heads


@pytest.mark.parametrize("type_", ["assistant", "tool_started", "tool_result", "agent_complete"])
@pytest.mark.parametrize("gated", [True, False])
async def test_what_was_written_is_read_back_and_done_once(type_: str, gated: bool) -> None:
    ran = []

    @tool(requires_approval=gated)
    def refund() -> str:
        ran.append("refund")
        return "ok"

    model = ScriptedModel([{"calls": [{"tool": "refund"}]}, {"text": "done"}])
    agent = Agent("a", model=model, tools=[refund])
    async with Runtime(Forgetful(type_), agents=[agent]) as rt:
        session = rt.session("s", agent=agent)
        result = await session.run("go", timeout=10)
        for call in result.pending:
            await rt.approve(call.id, by="ana")
        result = await session.run(timeout=10)
        assert (result.output, ran, len(model.requests)) == ("done", ["refund"], 2)


@pytest.mark.parametrize("type_", ["assistant", "tool_started", "agent_error"])
async def test_a_drive_introduces_itself_once(type_: str) -> None:
    """E8: only what is missing is committed."""

    @tool(requires_approval=True)
    def refund() -> str:
        return "ok"

    model = ScriptedModel([{"calls": [{"tool": "refund"}]}, {"error": "no"}])
    agent = Agent("a", model=model, tools=[refund])
    async with Runtime(Forgetful(type_), agents=[agent]) as rt:
        session = rt.session("s", agent=agent)
        (call,) = (await session.run("go", timeout=10)).pending
        await rt.approve(call.id, by="ana")
        assert (await session.run(timeout=10)).state == "failed"
        starts = [event for event in await session.events() if event.type == "agent_start"]
        assert len(starts) == 2


async def test_a_summary_is_written_once() -> None:
    @tool
    def look() -> str:
        return "seen " * 100

    model = ScriptedModel([*[{"calls": [{"tool": "look"}]}] * 4, {"text": "done"}])
    agent = Agent("a", model=model, tools=[look], compaction={"at": 100, "keep": 1})
    async with Runtime(Forgetful("compacted"), agents=[agent]) as rt:
        session = rt.session("s", agent=agent)
        assert (await session.run("go", timeout=10)).output == "done"
        cuts = [event.data["upTo"] for event in await session.events() if event.type == "compacted"]
    assert len(cuts) == len(set(cuts)) == sum(one.purpose == "summary" for one in model.requests)
    assert cuts
