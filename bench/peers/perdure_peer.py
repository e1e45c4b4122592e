"""perdure through its public Runtime on a file, as it is shipped."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from bench.peers import common
from bench.peers.common import Story

from perdure import Agent, NotFound, Runtime, tool
from perdure.core.conversation.messages import Answer, AskedCall
from perdure.runtime.models.base import Delta, Request
from perdure.store.sqlite.open import python_connect, settled


class Fake:
    """A model that answers at once."""

    name = "bench:fake"

    def __init__(self, story: Story) -> None:
        self._story = story

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """Play the story's move for this turn."""
        move = self._story.asked(request.turn - 1)
        if move in ("deploy", "charge"):
            yield Answer(calls=(AskedCall(f"call-{request.turn}", move, common.ARGS),))
        else:
            yield Answer(text=common.KILO if move == "talk" else common.ANSWER)


class Perdure:
    """An open Runtime."""

    def __init__(self, rt: Runtime, story: Story, durability: Callable[[], Awaitable[str]]) -> None:
        self._rt = rt
        self._story = story
        self._shown = durability
        self._pending: dict[str, str] = {}

    async def durability(self) -> str:
        """Of a connection as it uses them."""
        return await self._shown()

    async def start(self, session: str) -> None:
        """Run until it waits."""
        result = await self._rt.session(session, agent="bench").run(common.MESSAGE, key="start")
        assert result.state == "waiting", result
        self._pending[session] = result.pending[0].id

    async def resume(self, session: str) -> None:
        """Submit the result, then go on."""
        await self._rt.submit_result(self._pending.pop(session), common.RESULT)
        self._story.accepted_at = time.perf_counter()
        self._story.reached("accepted")
        result = await self._rt.session(session, agent="bench").run()
        assert result.state == "completed", result

    async def recover(self, session: str) -> str:
        """Run it again, as a program that was killed would."""
        known = self._rt.session(session, agent="bench")
        try:
            await known.get()
        except NotFound:
            return "nothing"
        result = await known.run(common.MESSAGE, key="start")
        if result.state == "waiting":
            self._pending[session] = result.pending[0].id
            return "waiting"
        assert result.state == "completed", result
        return "done"

    async def talk(self, session: str) -> None:
        """One message and its answer."""
        result = await self._rt.session(session, agent="bench").run(common.KILO)
        assert result.state == "completed", result


def agent_of(story: Story) -> Agent[str]:
    """An agent whose model plays the story."""

    @tool(deferred=True)
    async def deploy(branch: str, region: str, size: str, ttl: str) -> None:
        """Deploy; reported from outside."""

    @tool
    async def charge(branch: str, region: str, size: str, ttl: str) -> str:
        """An effect that must not be repeated."""
        story.reached("charged")
        return "charged"

    return Agent("bench", model=Fake(story), tools=[deploy, charge])


@asynccontextmanager
async def opened(folder: Path, story: Story, variant: str) -> AsyncIterator[Perdure]:
    """A Runtime on a file in the folder; there is one variant."""
    assert not variant
    path = folder / "perdure.db"

    async def durability() -> str:
        """Of a connection made as the store makes its own."""
        connection = settled(python_connect(str(path)))
        try:
            return common.pragmas(connection)
        finally:
            connection.close()

    async with Runtime(f"sqlite:///{path}", agents=[agent_of(story)]) as rt:
        yield Perdure(rt, story, durability)


if __name__ == "__main__":
    common.main(opened)
