"""A turn costs as many steps as it has calls, not their square, however long the session is."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

import pytest

from perdure import Agent, Delta, Runtime, tool
from perdure.core.conversation.messages import Answer
from perdure.runtime.models.base import Request
from perdure.testing import ScriptedModel

FEW, MANY = 100, 400
# What does not depend on the number of calls makes the ratio smaller, and nothing else does.
MOST = 1.1 * MANY / FEW


class Steps:
    """Number of lines of perdure that were run: a loop counts once for each of its rounds."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if "perdure" not in frame.f_code.co_filename:
            return None
        if event == "line":
            self.count += 1
        return self._trace


@tool(deferred=True)
async def deploy(number: int) -> None:
    """Deploy; the result is submitted later."""


@tool(external=True)
async def upload(number: int) -> None:
    """Upload; a person does it."""


async def steps_of_turn(calls: int, name: str) -> dict[str, int]:
    """Return the steps to start, settle and answer the calls of one turn."""
    turn = [{"tool": name, "args": {"number": number}} for number in range(calls)]
    model = ScriptedModel([{"calls": turn}, {"text": "done"}])
    agent = Agent("a", model=model, tools=[deploy, upload])
    start, settle, answer = Steps(), Steps(), Steps()
    async with Runtime("memory:", agents=[agent]) as rt:
        session = rt.session("s", agent=agent)
        with start.counted():
            result = await session.run("go")
        assert len(result.pending) == calls
        with settle.counted():
            for call in result.pending:
                await rt.submit_result(call.id, "up")
        with answer.counted():
            assert (await session.run()).state == "completed"
    return {"start": start.count, "settle": settle.count, "answer": answer.count}


@pytest.mark.parametrize("name", ["deploy", "upload"])
async def test_the_steps_of_a_turn_with_many_deferred_calls_grow_with_their_number(
    name: str,
) -> None:
    few, many = await steps_of_turn(FEW, name), await steps_of_turn(MANY, name)
    growth = {part: round(many[part] / few[part], 2) for part in few}
    assert max(growth.values()) <= MOST, growth


class ModelWithoutUsage:
    """Model that does not report its usage, so that tokens are estimated."""

    name = "test:plain"

    async def answer(self, _request: Request) -> AsyncIterator[Delta | Answer]:
        yield Answer(text="Seen.")


async def test_the_steps_of_a_turn_do_not_grow_with_the_session() -> None:
    agent = Agent("a", model=ModelWithoutUsage())
    early, late = [Steps() for _ in range(5)], [Steps() for _ in range(5)]
    counted = dict(enumerate(early, 20)) | dict(enumerate(late, 120))
    async with Runtime("memory:", agents=[agent]) as rt:
        session = rt.session("s", agent=agent)
        for number in range(125):
            with counted[number].counted() if number in counted else nullcontext():
                assert (await session.run("go")).state == "completed"
    # The background task of the runtime works during some of the turns, too.
    assert min(steps.count for steps in late) <= 1.1 * min(steps.count for steps in early)
