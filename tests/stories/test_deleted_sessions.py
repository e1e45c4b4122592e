"""A session that is deleted between looking and writing is one that is not there."""

from collections.abc import Sequence
from typing import Any

import pytest

from perdure import Agent, NotFound, Runtime
from perdure.store.base import Check, Heads, Put, Write
from perdure.store.memory import MemoryStore
from perdure.testing import ScriptedModel


class Deleted(MemoryStore):
    """Somebody deletes the stream just before the next write to it."""

    is_next = False

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> Heads:
        if self.is_next:
            self.is_next = False
            await super().commit([Write(writes[0].stream, erase=True)])
        return await super().commit(writes, puts, checks)


@pytest.mark.parametrize("verb", ["set_metadata", "run a failed one", "run a due one", "cancel"])
async def test_it_is_not_found(verb: str) -> None:
    store = Deleted()
    one = Agent("a", model=ScriptedModel([{"error": "no"}]))
    async with Runtime(store, agents=[one]) as rt:
        session = rt.session("s", agent=one)
        if verb == "run a failed one":
            await session.run("Hi")
        else:
            await session.send("Hi")
        store.is_next = True
        verbs: dict[str, Any] = {
            "set_metadata": lambda: session.set_metadata({"a": 1}),
            "cancel": session.cancel,
        }
        with pytest.raises(NotFound) as refused:
            await verbs.get(verb, session.run)()
        assert refused.value.code == "SESSION_NOT_FOUND"


async def test_a_run_that_was_over_is_not_turned_into_a_failed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else `run()` without a message would start again what somebody has cancelled."""
    from perdure.runtime.engine import driver as engine

    one = Agent("a", model=ScriptedModel([{"text": "Hello."}]))
    async with Runtime(MemoryStore(), agents=[one]) as rt:
        session = rt.session("s", agent=one)
        await session.send("Hi")
        await session.cancel()

        def broken(*_: Any) -> None:
            raise RuntimeError("a bug")

        with monkeypatch.context() as patch:
            patch.setattr(engine, "plan", broken)
            await rt.work(once=True)
        assert (await session.get()).state == "cancelled"
        assert (await session.run()).state == "cancelled"


async def test_a_watched_session_is_that_of_its_tenant() -> None:
    async with Runtime(MemoryStore(), agents=[]) as rt:
        for tenant in ("", "acme"):
            await rt.tenant(tenant).session("s", agent="a").send(f"of {tenant}")
        async for event in rt.stream(session="s", after=0):
            assert event.tenant == ""
            break
        async for event in rt.tenant("acme").stream(session="s", after=0):
            assert event.tenant == "acme"
            break
        seen = [event.tenant for event in await _first(rt, 1)]
        assert seen == [""]


async def _first(rt: Runtime, least: int) -> list[Any]:
    """What a watcher of `s` sees up to a last message to it."""
    await rt.session("s").send("last")
    seen = []
    async for event in rt.stream(session="s", after=0):
        if event.data.get("content") == "last":
            break
        seen.append(event)
    assert len(seen) >= least
    return seen
