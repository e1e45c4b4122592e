"""Leases that nobody would drive: each way to one, and the session goes on all the same."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from tests.support.endless_tool import endless_tool
from tests.support.findings import code_of

from perdure import Agent, Delta, Runtime, host, tool
from perdure.core.conversation.messages import Answer
from perdure.errors import Corrupt
from perdure.runtime.models.base import Request
from perdure.runtime.records.entries import SessionRef
from perdure.store.base import Check, Heads, Lease, Put, Record, Unknown, Write
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel

MakeRuntime = Callable[..., Runtime]


def agent(*turns: dict[str, Any], **options: Any) -> Agent[str]:
    return Agent("helper", model=ScriptedModel(turns), **options)


class Slow(MemoryStore):
    """Claims at once, and takes a while to say so."""

    def __init__(self) -> None:
        super().__init__()
        self.claimed, self.may_answer = anyio.Event(), anyio.Event()

    async def claim(self, holder: str, kind: str, limit: int, **options: Any) -> list[Lease]:
        leases = await super().claim(holder, kind, limit, **options)
        self.claimed.set()
        await self.may_answer.wait()
        return leases


@pytest.mark.parametrize("how", ["run", "stream", "work"])
async def test_a_caller_who_leaves_while_a_claim_is_answered_leaves_no_session_held(
    how: str,
) -> None:
    """Cancelling does not withdraw the claim, and our heartbeat would keep it for ever."""
    store, one = Slow(), agent({"text": "Hello."})
    async with Runtime(store, agents=[one]) as rt:
        session = rt.session("s", agent=one)
        await session.send("Hi")

        async def streamed() -> None:
            async for _ in session.stream():
                pass

        async def leave() -> None:
            begun: dict[str, Any] = {"run": session.run, "stream": streamed, "work": rt.work}
            task = asyncio.ensure_future(begun[how]())
            await store.claimed.wait()
            task.cancel()
            await asyncio.wait([task])

        with anyio.fail_after(5):
            await leave()
            store.may_answer.set()
            assert (await session.run()).output == "Hello."


async def test_a_claim_whose_answer_was_lost_leaves_no_session_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """E8: whatever was claimed under that name, only letting the name end frees it."""
    monkeypatch.setenv("PERDURE_LEASE", "0.3s")

    class Forgetful(MemoryStore):
        forgets = True

        async def claim(self, holder: str, kind: str, limit: int, **options: Any) -> list[Lease]:
            leases = await super().claim(holder, kind, limit, **options)
            if leases and self.forgets:
                self.forgets = False
                raise Unknown("the answer was lost")
            return leases

    one = agent({"text": "Hello."})
    async with Runtime(Forgetful(), agents=[one]) as rt:
        session = rt.session("s", agent=one)
        with pytest.raises(Unknown):
            await session.run("Hi")
        with anyio.fail_after(5):
            assert (await session.run()).output == "Hello."


async def test_a_message_claims_the_session_that_it_wakes() -> None:
    """All but the first, before which this process has not joined the store."""

    class Counting(MemoryStore):
        claims = 0

        async def claim(self, holder: str, kind: str, limit: int, **options: Any) -> list[Lease]:
            self.claims += 1
            return await super().claim(holder, kind, limit, **options)

    store, one = Counting(), agent({"text": "Hello."}, {"text": "Again."})
    async with Runtime(store, agents=[one]) as rt:
        await rt.session("s", agent=one).run("Hi")
        assert store.claims == 1
        assert (await rt.session("s", agent=one).run("Hi")).output == "Again."
        assert (await rt.session("t", agent=one).run("Hi")).output == "Hello."
        assert store.claims == 1


class Stopped:
    """The local clock, as a process sees it that did not run for a while."""

    ahead = 0.0

    def elapsed(self) -> float:
        return time.monotonic() + self.ahead


async def test_a_lease_that_ran_out_before_an_effect_is_not_kept_alive_undriven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody else was there to take it, so the heartbeat of the same name comes through again."""
    local, ran = Stopped(), []
    monkeypatch.setattr(host, "elapsed", local.elapsed)
    monkeypatch.setenv("PERDURE_LEASE", "0.3s")

    class Blocked(MemoryStore):
        async def commit(
            self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
        ) -> Heads:
            heads = await super().commit(writes, puts, checks)
            if any(one.type == "tool_started" for write in writes for one in write.records):
                local.ahead += 60
            return heads

    @tool
    def act() -> str:
        ran.append("act")
        return "acted"

    one = agent({"calls": [{"tool": "act"}]}, {"text": "Done."}, tools=[act])
    async with Runtime(Blocked(), agents=[one]) as rt:
        session = rt.session("s", agent=one)
        with anyio.fail_after(5):
            result = await session.run("Go")
        assert (result.output, ran) == ("Done.", [])
        (told,) = [e.data for e in await session.events() if e.type == "tool_result"]
        assert told["interrupted"]


async def test_what_runs_under_a_lost_name_is_called_off_and_the_session_goes_on(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    """E9"""
    endless, begun, stopped = endless_tool()
    one = agent({"calls": [{"tool": "endless"}]}, {"text": "Done."}, tools=[endless])
    async with in_memory(one) as rt, anyio.create_task_group() as tasks:
        with anyio.fail_after(10):
            tasks.start_soon(rt.session("s", agent=one).run, "Go")
            await begun.wait()
            clock.advance("1m")  # the heartbeat did not come through in time
            await rt.session("other", agent=one).send("Go")
            with anyio.move_on_after(0.1):
                await rt.session("other", agent=one).run()  # its claim meets that we are lost
            await stopped.wait()
            assert (await rt.session("s", agent=one).run()).output == "Done."
        tasks.cancel_scope.cancel()


async def test_a_drive_that_ends_late_does_not_hide_the_one_that_took_its_place(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    begun, may_end = anyio.Event(), anyio.Event()
    attempts: list[int] = []

    @tool(idempotent=True)
    async def stubborn() -> str:
        attempts.append(1)
        begun.set()
        with anyio.CancelScope(shield=True):
            await may_end.wait()
        return "ok"

    one = agent({"calls": [{"tool": "stubborn"}]}, {"text": "Done."}, tools=[stubborn])
    async with in_memory(one) as rt, anyio.create_task_group() as tasks:
        with anyio.fail_after(10):
            tasks.start_soon(rt.session("s", agent=one).run, "Go")
            await begun.wait()
            clock.advance("1m")
            worker = asyncio.ensure_future(rt.work())
            while len(attempts) < 2:
                await checkpoint()
            drives = rt._service.drives.running
            (new,) = drives.values()
            may_end.set()
            await new.done.wait()
            assert new.is_parked
            assert (await rt.session("s").get()).output == "Done."
        worker.cancel()
        tasks.cancel_scope.cancel()


async def test_a_drive_that_fails_at_once_is_told_to_who_asked_for_it(
    in_memory: MakeRuntime, memory: MemoryStore
) -> None:
    one = agent({"text": "Hello."})
    async with in_memory(one) as rt:
        await rt.session("other", agent=one).run("Hi")  # what is only begun once has begun
        await rt.session("s", agent=one).send("Hi")
        await memory.commit([Write("s//s", [Record("assistant", b"{")])])
        with anyio.fail_after(5), pytest.raises(Corrupt):
            await rt._service.runs.follow(
                await rt._resources.session_inbox.session_entry(SessionRef("", "s"))
            )


async def test_of_sessions_whose_processes_stopped_twice_two_are_driven_first(
    in_memory: MakeRuntime,
    memory: MemoryStore,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S4.32: one that stops its process must not make others look guilty; none waits for a time."""
    caplog.set_level("INFO", "perdure")
    running: set[str] = set()
    counts: list[int] = []  # of sessions that run when another has started

    class Model:
        name = "test:slow"

        async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
            running.add(request.session_id)
            counts.append(len(running))
            await anyio.wait_all_tasks_blocked()
            running.discard(request.session_id)
            yield Answer("Done.")

    agent_a = Agent("a", model=Model())
    names = tuple(f"s{number}" for number in range(9))
    async with in_memory(agent_a) as rt:
        for name in names:
            await rt.session(name, agent=agent_a).send("Go")
        for holder in ("dead-1", "dead-2"):
            await memory.renew(holder, 1_000, join=True)
            assert len(await memory.claim(holder, "session:a", 10)) == len(names)
            clock.advance("2s")
            await memory.reap(memory.now())
        await memory.renew("other@default", 60_000, join=True)  # a worker elsewhere
        held = await rt.session("s1").get()
        assert (code_of(held), held.state) == ("HELD_BACK", "pending")
        clock.advance("5s")
        (finding,) = (await rt.session("s1").get()).findings
        assert finding.text.startswith(
            "Session s1 is held back (HELD_BACK), and has not moved for 9.0s. The last 2 processes "
            "that drove it stopped"
        )
        with anyio.fail_after(20):
            await rt.work(once=True)
        states = {(await rt.session(name).get()).state for name in names}
    assert states == {"completed"}
    assert counts[:2] == [1, 2]
    assert max(counts) > 2
    assert (
        "up to 9 sessions stopped before they recorded anything: 2 are driven first" in caplog.text
    )
    assert "no session is held back any more" in caplog.text


async def test_suspects_that_have_to_wait_are_not_claimed(
    in_memory: MakeRuntime,
    memory: MemoryStore,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S4.32: the end of the process would count as a try of each; others do not wait for them."""
    claimed: list[int] = []
    claim = memory.claim

    async def count(*arguments: Any, **options: Any) -> list[Lease]:
        leases = await claim(*arguments, **options)
        claimed.extend([len(leases)] if leases else [])
        return leases

    agent_a = Agent("a", model=ScriptedModel([{"text": "Done."}]))
    async with in_memory(agent_a) as rt:
        for number in range(9):
            await rt.session(f"s{number}", agent=agent_a).send("Go")
        for holder in ("dead-1", "dead-2"):
            await memory.renew(holder, 1_000, join=True)
            await memory.claim(holder, "session:a", 10)
            clock.advance("2s")
            await memory.reap(memory.now())
        await rt.session("new", agent=agent_a).send("Go")
        monkeypatch.setattr(memory, "claim", count)
        with anyio.fail_after(20):
            await rt.work(once=True)
    assert (claimed[0], sum(claimed)) == (3, 10)


class Crashed(MemoryStore):
    """As a server that was killed before a claim, which is not synced, had reached its disk."""

    def forget_claim(self) -> None:
        """The stream is as it was before; the holder's row, which is older, is there."""
        for stream, row in tuple(self._tables.streams.items()):
            if row.holder is not None:
                before = row._replace(epoch=row.epoch - 1, holder=None, due=0, tries=0)
                self._tables.set_stream(stream, before)
        self._signal.notify()


async def test_a_claim_that_the_store_has_forgotten_is_not_driven_twice_in_one_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G5: the second claim has the epoch and the holder of the first, so no fence parts them."""
    monkeypatch.setenv("PERDURE_LEASE", "0.3s")
    store, ran, asked = Crashed(), list[str](), list[anyio.Event]()

    class Slow(ScriptedModel):
        async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
            if request.turn == 1:
                asked.append(anyio.Event())
                await asked[-1].wait()
            async for piece in super().answer(request):
                yield piece

    @tool
    async def act() -> str:
        ran.append("act")
        await anyio.sleep(0.1)
        return "acted"

    model = Slow([{"calls": [{"tool": "act"}]}, {"text": "Done."}])
    one = Agent("helper", model=model, tools=[act])
    async with Runtime(store, agents=[one], worker=True) as rt:
        session = rt.session("s", agent=one)
        with anyio.fail_after(10):
            await session.send("Go")
            while not asked:
                await checkpoint()
            store.forget_claim()
            while len(asked) < 2:
                await checkpoint()
            for event in asked:
                event.set()
            assert (await session.run()).output == "Done."
        log = await session.events()
    assert ran == ["act"]
    assert [e.type for e in log].count("tool_started") == 1
