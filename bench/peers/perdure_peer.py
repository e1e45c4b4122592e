"""perdure with its public Runtime on a SQLite file and default settings.

The call of a cycle is that of an external tool: nothing is started at the pause, and the run that
continues the session also submits the result. With the variant `deferred` the tool starts work
elsewhere, of which the start is recorded too, and the result is submitted before the run. The
variant `files` is the first one in a files store.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path

from bench.peers import common
from bench.peers.common import Story

from perdure import Agent, NotFound, Runtime, tool
from perdure.app import service_of
from perdure.core.conversation.messages import Answer, RequestedCall
from perdure.core.session.naming import session_stream
from perdure.runtime.models.base import Request
from perdure.store.sqlite.open import apply_settings, python_connect
from perdure.views.events import Delta

DEFERRED, FILES = "deferred", "files"


class FakeModel:
    """Model that responds immediately."""

    name = "bench:fake"

    def __init__(self, story: Story) -> None:
        self._story = story

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """Play the story's move for this turn."""
        move = self._story.next_move(request.turn - 1)
        if move in ("deploy", "charge"):
            yield Answer(calls=(RequestedCall(f"call-{request.turn}", move, common.ARGS),))
        else:
            yield Answer(text=common.KILO if move == "talk" else common.ANSWER)


class Perdure:
    """Open Runtime."""

    def __init__(
        self,
        rt: Runtime,
        story: Story,
        durability: Callable[[], Awaitable[str]],
        *,
        is_deferred: bool = False,
    ) -> None:
        self._rt = rt
        self._is_deferred = is_deferred
        self._story = story
        self._read_durability = durability
        self._pending: dict[str, str] = {}

    async def durability(self) -> str:
        """Return the settings of a connection like those of the store."""
        return await self._read_durability()

    async def start(self, session: str) -> None:
        """Run until the session waits."""
        result = await self._rt.session(session, agent="bench").run(common.MESSAGE, key="start")
        assert result.state == "waiting", result
        self._pending[session] = result.pending[0].id

    async def resume(self, session: str) -> None:
        """Submit the result and continue the run."""
        handle = self._rt.session(session, agent="bench")
        pending_id = self._pending.pop(session)
        if self._is_deferred:
            self._story.accepted_at = 0.0
            await self._rt.submit_result(pending_id, common.RESULT)
            self._note_accepted()
            result = await handle.run()
        else:
            with self._noting_accepted(session):
                result = await handle.run(results={pending_id: common.RESULT})
        assert result.state == "completed", result

    def _note_accepted(self, _: int = 0) -> None:
        if not self._story.accepted_at:
            self._story.accepted_at = time.perf_counter()
            self._story.reach("accepted")

    def _noting_accepted(self, session: str) -> AbstractContextManager[None]:
        """Note when the log first grows: by the result. Only with one session at a time."""
        self._story.accepted_at = 0.0
        if self._pending:
            return nullcontext()
        feed = service_of(self._rt).drives.background.feed
        return feed.subscribe(session_stream("", session), self._note_accepted)

    async def delegate(self, session: str, more: Callable[[], bool]) -> int:
        """Launch children for a session; it runs until its model has read the answer of each."""
        parent = self._rt.session(session, agent="lead")
        result = await parent.run(common.MESSAGE)
        number = 0
        while more():
            await self._rt.spawn("research", common.MESSAGE, parent=session)
            result = await parent.run()
            assert result.state == "completed", result
            number += 1
        assert result.usage.requests == number + 1, result.usage
        return number

    async def recover(self, session: str) -> str:
        """Run the session again, as a restarted program does."""
        handle = self._rt.session(session, agent="bench")
        try:
            await handle.get()
        except NotFound:
            return "nothing"
        result = await handle.run(common.MESSAGE, key="start")
        if result.state == "waiting":
            self._pending[session] = result.pending[0].id
            return "waiting"
        assert result.state == "completed", result
        return "done"

    async def talk(self, session: str) -> None:
        """Run one message to its response."""
        result = await self._rt.session(session, agent="bench").run(common.KILO)
        assert result.state == "completed", result


def create_agent(story: Story, *, is_deferred: bool = False) -> Agent[str]:
    """Return an agent whose model plays the story."""

    @tool(deferred=True, external=not is_deferred)
    async def deploy(branch: str, region: str, size: str, ttl: str) -> None:
        """Deploy; the result is submitted later."""

    @tool
    async def charge(branch: str, region: str, size: str, ttl: str) -> str:
        """Have an effect that must not be repeated."""
        story.reach("charged")
        return "charged"

    return Agent("bench", model=FakeModel(story), tools=[deploy, charge])


@asynccontextmanager
async def open_peer(folder: Path, story: Story, variant: str) -> AsyncIterator[Perdure]:
    """Open a Runtime on a file in the folder."""
    assert variant in ("", DEFERRED, FILES)
    is_deferred = variant == DEFERRED
    url, path = f"sqlite:///{folder}/perdure.db", folder / "perdure.db"
    if variant == FILES:
        url, path = f"files:{folder}/sessions", folder / "sessions" / ".perdure" / "store.db"

    async def durability() -> str:
        """Return the settings of a connection opened the way the store opens its own."""
        connection = apply_settings(python_connect(str(path)))
        try:
            return common.read_durability(connection)
        finally:
            connection.close()

    talking = Story(("say",))
    research = Agent("research", model=FakeModel(talking))
    lead = Agent("lead", model=FakeModel(talking), sub_agents=[research])
    agents = [create_agent(story, is_deferred=is_deferred), lead]
    async with Runtime(url, agents=agents) as rt:
        yield Perdure(rt, story, durability, is_deferred=is_deferred)


if __name__ == "__main__":
    common.main(open_peer)
