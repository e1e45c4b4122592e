"""Fair between sessions: ten thousand that could go on keep no other one waiting."""

from collections.abc import AsyncIterator, Callable, Sequence

import anyio
import pytest

from perdure import Agent, Delta, Runtime
from perdure.core.conversation.messages import Answer
from perdure.core.log import events
from perdure.core.session import naming as index
from perdure.core.session.naming import SessionRecord
from perdure.runtime.models.base import Request
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.records.log import as_record
from perdure.store.base import Write
from perdure.testing import ManualClock, ScriptedModel

MakeRuntime = Callable[..., Runtime]

MANY = 10_000
AT_ONCE = 4


class Counting(ScriptedModel):
    """Notes whom it answers, until those who are waited for were among them."""

    def __init__(self, *names: str) -> None:
        super().__init__([{"text": "Done."}])
        self.asked: list[str] = []
        self.all_seen = anyio.Event()
        self._left = set(names)

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        self.asked.append(request.session_id)
        self._left.discard(request.session_id)
        if not self._left:
            self.all_seen.set()
        await anyio.sleep(0.2)  # so that no place is free by itself
        async for piece in super().answer(request):
            yield piece


def session(name: str, agent: str, tenant: str, queue: str, due: int) -> tuple[Write, SessionEntry]:
    """A session to which somebody has said something, due at an instant."""
    stream = index.session_stream(tenant, name)
    record = SessionRecord(id=name, tenant=tenant, agent=agent, queue=queue, task_id=f"task_{name}")
    said = as_record(events.User(role="user", content="Go", task_id=record.task_id), due)
    kind = index.stream_kind(agent, queue)
    return Write(stream, [said], create=kind, head=0, wake=due), SessionEntry.new(record, stream)


async def begin(rt: Runtime, sessions: Sequence[tuple[Write, SessionEntry]]) -> None:
    for start in range(0, len(sessions), 1000):
        some = sessions[start : start + 1000]
        await rt._resources.store.commit(
            [write for write, _ in some], [known.as_put for _, known in some]
        )


@pytest.mark.parametrize("runtime", ["sqlite", "postgres"], indirect=True)
async def test_ten_thousand_sessions_that_are_due_keep_no_other_one_waiting(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """Another agent and another queue have their turn; of one, who has waited longest is first."""
    model = Counting("other agent", "other queue", "first of all")
    busy, other = Agent("busy", model=model, queue="urgent"), Agent("other", model=model)
    async with runtime(busy, other) as rt:
        now = clock.now()
        crowd = {"agent": "busy", "tenant": "crowd", "queue": "default"}
        many = [session(f"c{n}", due=now - MANY + n, **crowd) for n in range(MANY)]
        ones = [
            session("other agent", due=now, **{**crowd, "agent": "other"}),
            session("other queue", due=now, **{**crowd, "queue": "urgent"}),
            session("first of all", due=now - MANY - 1, **{**crowd, "tenant": "one"}),
        ]
        await begin(rt, [*many, *ones])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: rt.work(concurrency=AT_ONCE))
            with anyio.fail_after(20):
                await model.all_seen.wait()
            tasks.cancel_scope.cancel()
    assert model.asked.index("first of all") < AT_ONCE
    assert model.asked.index("other agent") < 4 * AT_ONCE
    assert model.asked.index("other queue") < 4 * AT_ONCE
