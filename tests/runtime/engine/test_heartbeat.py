"""One process holds everything under one name, however many sessions begin at once."""

import anyio

from perdure import Agent, Runtime
from perdure.runtime.models.scripted import ScriptedModel
from perdure.store.memory import MemoryStore


class Slow(MemoryStore):
    """A store whose answers take a moment, as those of a disk do."""

    def __init__(self) -> None:
        super().__init__()
        self.joined: list[str] = []

    async def renew(self, holder: str, ttl_ms: int, *, join: bool = False) -> int:
        await anyio.lowlevel.checkpoint()
        if join:
            self.joined.append(holder)
        return await super().renew(holder, ttl_ms, join=join)


async def test_sessions_that_begin_at_once_are_held_under_one_name() -> None:
    store = Slow()
    agent = Agent("a", model=ScriptedModel([{"text": "ok"}]))
    async with Runtime(store, agents=[agent]) as rt, anyio.create_task_group() as tasks:
        for n in range(8):
            tasks.start_soon(rt.session(f"s{n}", agent=agent).run, "Go")
    assert len(store.joined) == 1
