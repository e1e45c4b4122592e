"""Calls whose external work was marked as started, found again after a restart."""

from typing import Any

from perdure import Agent, PendingCall, Runtime, tool
from perdure.runtime.inbox.pending import STARTED
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel


class CountingStore(MemoryStore):
    """Memory store that counts the pending entries that are looked at."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.looked_at = 0

    async def find(self, kind: str, **conditions: Any) -> Any:
        page = await super().find(kind, **conditions)
        self.looked_at += len(page.entries) if kind in ("pending", STARTED) else 0
        return page


@tool(deferred=True)
async def deploy(call: PendingCall, started: bool = False) -> str:
    """Deploy."""
    if started:
        await call.mark_started()
    return "ref"


def agent() -> Agent[str]:
    calls = [{"tool": "deploy", "args": {"started": n == 0}} for n in range(16)]
    return Agent("helper", model=ScriptedModel([{"calls": calls}]), tools=[deploy])


async def test_a_start_looks_only_at_the_calls_that_were_started(clock: ManualClock) -> None:
    """S0.66"""
    store, one = CountingStore(clock), agent()
    async with Runtime(store, agents=[one]) as rt:
        pending = (await rt.session("s", agent=one).run("Go")).pending
        assert "processing" in {call.status for call in pending}
        store.looked_at = 0
        await rt._service.calls.reset_stale()
        assert store.looked_at == 1
        assert {call.status for call in (await rt.session("s").get()).pending} == {"waiting"}


async def test_a_settled_call_leaves_nothing_to_look_at(clock: ManualClock) -> None:
    store, one = MemoryStore(clock), agent()
    async with Runtime(store, agents=[one]) as rt:
        pending = (await rt.session("s", agent=one).run("Go")).pending
        (started,) = [call for call in pending if call.status == "processing"]
        await rt.submit_result(started.id, "up")
        assert (await store.find(STARTED)).entries == ()
        await rt.session("t", agent=one).run("Go")
        await rt.session("t").cancel()
        await rt.session("t").run()
        await rt._service.calls.reset_stale()
        assert [entry.key for entry in (await store.find(STARTED)).entries] == []
