"""A store that fails, rows that cannot be read, a process that dies inside a tool."""

import sqlite3
from asyncio import all_tasks, current_task
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.servers.fixtures import StartPostgres
from tests.support.findings import code_of, problem_of

from perdure import Agent, Context, PendingCall, Runtime, tool
from perdure.errors import Corrupt, StoreError
from perdure.runtime.engine import writer as ledger
from perdure.store.base import Check, Heads, Put, Slice, Store, Unavailable, Unknown, Write
from perdure.store.memory import MemoryStore
from perdure.testing import Crashed, ManualClock, ScriptedModel, crash_after

MakeRuntime = Callable[..., Runtime]


def agent(*turns: dict[str, Any], tools: Sequence[Any] = (), **options: Any) -> Agent[str]:
    return Agent("helper", model=ScriptedModel(turns), tools=tools, **options)


def calls(*names: str) -> dict[str, Any]:
    return {"text": "Go.", "calls": [{"tool": name} for name in names]}


def model_of(one: Agent[Any]) -> ScriptedModel:
    assert isinstance(one.model, ScriptedModel)
    return one.model


async def tool_results(rt: Runtime, session: str = "s") -> list[Any]:
    events = await rt.session(session).events()
    return [event.data for event in events if event.type == "tool_result"]


class Moody(MemoryStore):
    """A store that refuses, in that mood, commits with such a record, or those of drivers."""

    refuses: str | None = None

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> Heads:
        types = {record.type for write in writes for record in write.records}
        by_driver = any(write.fence is not None for write in writes)
        if self.refuses in types or (self.refuses == "drivers" and by_driver):
            raise Unavailable("disk full")
        return await super().commit(writes, puts, checks)


# --- a store that cannot be written -----------------------------------------------------------


@pytest.mark.parametrize("refused", ["pending", "tool_started"])
async def test_what_cannot_be_recorded_is_not_done(clock: ManualClock, refused: str) -> None:
    """S4.7"""
    ran: list[str] = []

    @tool(requires_approval=refused == "pending")
    def act() -> str:
        ran.append("act")
        return "acted"

    store = Moody(clock)
    one = agent(calls("act"), {"text": "Done."}, tools=[act])
    async with Runtime(store, agents=[one]) as rt:
        store.refuses = refused
        with pytest.raises(StoreError, match="failed to save execution state: disk full"):
            await rt.session("s", agent=one).run("Go")
        assert ran == []
        store.refuses = None
        assert [call async for call in rt.pending(status="all")] == []
        assert not [e for e in await rt.session("s").events() if e.type == "assistant"]


@pytest.mark.parametrize("again", [(), ("Hi",)], ids=["go on", "the same message"])
async def test_a_session_is_not_held_for_ever_by_a_drive_that_could_not_let_go(
    clock: ManualClock, again: tuple[str, ...]
) -> None:
    """S4.34, S0.42"""
    store = Moody(clock)
    one = agent({"text": "Hello."})
    async with Runtime(store, agents=[one]) as rt:
        await rt.session("s", agent=one).send("Hi", key="k")
        store.refuses = "drivers"
        with pytest.raises(StoreError, match="failed to save execution state"):
            await rt.session("s", agent=one).run()
        store.refuses = None
        with anyio.fail_after(5):
            result = await rt.session("s", agent=one).run(*again, key="k")
        assert result.output == "Hello."


async def test_what_a_tool_did_is_kept_over_an_outage_shorter_than_the_lease(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "MAX_PAUSE_S", 0.001)
    store = Moody(clock)
    commit, refused = store.commit, list[str]()

    async def away(
        writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> dict[str, int]:
        types = [record.type for write in writes for record in write.records]
        if "tool_result" in types and len(refused) < 5 * ledger.ATTEMPTS:
            refused.extend(types)
            raise Unavailable("away")
        return await commit(writes, puts, checks)

    monkeypatch.setattr(store, "commit", away)

    @tool
    def act() -> str:
        return "acted"

    one = agent(calls("act"), {"text": "Done."}, tools=[act])
    async with Runtime(store, agents=[one]) as rt:
        result = await rt.session("s", agent=one).run("Go")
        (told,) = await tool_results(rt)
    assert (result.output, len(refused)) == ("Done.", 5 * ledger.ATTEMPTS)
    assert told["result"] == "acted"


async def test_what_a_tool_did_is_kept_if_neither_its_commit_nor_a_read_is_answered(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G2"""
    monkeypatch.setattr(ledger, "MAX_PAUSE_S", 0.001)
    store = Moody(clock)
    commit, read, lost, unread = store.commit, store.read, list[str](), list[str]()

    async def unanswered(
        writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> dict[str, int]:
        types = [record.type for write in writes for record in write.records]
        if "tool_result" in types and not lost:
            lost.extend(types)
            raise Unknown("the connection broke")
        return await commit(writes, puts, checks)

    async def away(stream: str, after: int = 0, limit: int | None = None) -> Slice:
        if lost and len(unread) < 5 * ledger.ATTEMPTS:
            unread.append(stream)
            raise Unavailable("away")
        return await read(stream, after, limit)

    monkeypatch.setattr(store, "commit", unanswered)
    monkeypatch.setattr(store, "read", away)
    ran: list[str] = []

    @tool
    def act() -> str:
        ran.append("act")
        return "acted"

    one = agent(calls("act"), {"text": "Done."}, tools=[act])
    async with Runtime(store, agents=[one]) as rt:
        with anyio.fail_after(10):
            result = await rt.session("s", agent=one).run("Go")
        (told,) = await tool_results(rt)
    assert (result.output, told["result"], ran) == ("Done.", "acted", ["act"])
    assert len(unread) == 5 * ledger.ATTEMPTS


async def test_what_a_tool_did_while_postgres_was_restarted_is_kept(
    start_postgres: StartPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G2"""
    monkeypatch.setenv("PERDURE_LEASE", "60s")
    monkeypatch.setattr(ledger, "FACT_PATIENCE_S", 60.0)
    server = start_postgres()

    @tool
    async def act() -> str:
        server.kill()
        return "acted"

    async def come_back(refused: anyio.Event) -> None:
        await refused.wait()
        server.start()

    one = agent(calls("act"), {"text": "Done."}, tools=[act])
    async with Runtime(server.url(), agents=[one]) as rt:
        refused = _refusals_of(rt._resources.store, ledger.ATTEMPTS + 1)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(come_back, refused)
                result = await rt.session("s", agent=one).run("Go")
        (told,) = await tool_results(rt)
    assert (result.output, told["result"]) == ("Done.", "acted")


def _refusals_of(store: Store, count: int) -> anyio.Event:
    """Set when so many commits, or reads after a commit without a reply, were refused."""
    commit, read, enough, refused = store.commit, store.read, anyio.Event(), list[Unavailable]()

    def refuse(error: Unavailable) -> Unavailable:
        refused.append(error)
        if len(refused) >= count:
            enough.set()
        return error

    async def counted_commit(
        writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> Heads:
        try:
            return await commit(writes, puts, checks)
        except Unavailable as error:
            raise refuse(error) from None

    async def counted_read(stream: str, after: int = 0, limit: int | None = None) -> Slice:
        try:
            return await read(stream, after, limit)
        except Unavailable as error:
            raise refuse(error) from None

    store.commit = counted_commit  # type: ignore[method-assign]
    store.read = counted_read  # type: ignore[method-assign]
    return enough


async def test_a_worker_outlives_a_store_that_is_away_for_a_while(clock: ManualClock) -> None:
    """S4.34"""
    store = Moody(clock)
    one = agent({"text": "Hello."})
    async with Runtime(store, agents=[one]) as rt:
        await rt.session("s", agent=one).send("Hi")
        store.refuses = "drivers"
        with anyio.fail_after(10):
            await rt.work(once=True)
        store.refuses = None
        clock.advance(6)
        with anyio.fail_after(10):
            await rt.work(once=True)
        assert (await rt.session("s").get()).output == "Hello."


# --- rows that cannot be read -----------------------------------------------------------------


async def test_an_event_that_cannot_be_read_is_named_and_harms_nobody_else(
    tmp_path: Path,
) -> None:
    one = agent({"text": "Hello."}, {"text": "Again."})
    url = f"sqlite:///{tmp_path}/h.db"
    async with Runtime(url, agents=[one]) as rt:
        for name in ("bad", "good"):
            await rt.session(name, agent=one).run("Hi")
    with sqlite3.connect(tmp_path / "h.db") as database:
        tables = [r[0] for r in database.execute("select name from sqlite_master")]
        assert "record" in tables
        (pos,) = database.execute("select min(pos) from record where type = 'assistant'").fetchone()
        database.execute("update record set data = x'7b' where pos = ?", (pos,))
    database.close()
    async with Runtime(url, agents=[one], worker=True) as rt:
        for asked in (
            rt.session("bad").get(),
            rt.session("bad", agent=one).run(),
            rt.session("bad").events(),
        ):
            with pytest.raises(Corrupt) as corrupt:
                await asked
            assert corrupt.value.details["seq"] == 3
            assert "event 3" in str(corrupt.value)
        assert len(await rt.session("bad").events(limit=2)) == 2
        assert (await rt.session("good", agent=one).run("More")).output == "Again."
        listed = {r.session_id: r async for r in rt.sessions()}
        assert set(listed) == {"bad", "good"}
        assert problem_of(listed["bad"]) is not None
        assert code_of(listed["bad"]) == "STORE_CORRUPT"
        assert listed["bad"].state == "completed"
        assert listed["good"].output == "Again."
        with anyio.fail_after(5):
            async for event in rt.stream(after=0, types={"agent_complete"}):
                if event.session_id == "good":
                    break
        with pytest.raises(Corrupt):
            await rt.session("bad", agent=one).run("Still there?")
        assert (await rt.session("new", agent=one).run("Hi")).state == "completed"


async def test_an_entry_that_cannot_be_read_does_not_stop_the_worker(
    in_memory: MakeRuntime, memory: MemoryStore, clock: ManualClock
) -> None:
    @tool(deferred=True, timeout="1h")
    def start() -> str:
        return "ref"

    one = agent(calls("start"), {"text": "Done."}, tools=[start])
    async with in_memory(one) as rt:
        bad = (await rt.session("bad", agent=one).run("Go")).pending[0]
        await rt.session("good", agent=one).run("Go")
        entry = await memory.get("pending", bad.id)
        assert entry is not None
        broken = Put("pending", bad.id, entry.version, entry.stream, "open", entry.due, b"{")
        await memory.commit([Write(entry.stream)], [broken])
        clock.advance("1h")
        await rt.work(once=True)
        assert (await rt.session("good").get()).output == "Done."
        with pytest.raises(Corrupt):
            await rt.submit_result(bad.id, "x")


# --- a process that dies inside a tool --------------------------------------------------------


async def crashed_in_a_tool(make: MakeRuntime, one: Agent[str], begun: anyio.Event) -> None:
    """Run until the tool has begun, then die: nothing of that process is written any more."""
    with crash_after(commits=None) as crash:
        rt = make(one)
        await rt.__aenter__()
        before = all_tasks()

        async def run() -> None:
            with pytest.raises(BaseException):  # noqa: B017, PT011 - however a dead process ends
                await rt.session("s", agent=one).run("Go")

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await begun.wait()
                crash.is_over = True
                for connection in crash._connections:
                    await connection.expire_leases()
                for task in all_tasks() - before - {current_task()}:
                    task.cancel()
        assert crash.is_over
        with contextmanager(_ignored)():
            await rt.__aexit__(None, None, None)


def _ignored() -> Iterator[None]:
    try:
        yield
    except (Crashed, BaseExceptionGroup, StoreError):
        return


@pytest.mark.parametrize("on_crash", ["tell", "ask", "retry"])
async def test_a_call_that_was_cut_off_is_told_asked_about_or_retried(
    in_memory: MakeRuntime, on_crash: Any
) -> None:
    ran: list[tuple[str, int]] = []
    begun = anyio.Event()

    @tool(on_crash=on_crash, idempotent=on_crash == "retry")
    async def act(ctx: Context) -> str:
        ran.append((ctx.effect_id, ctx.attempt))
        if len(ran) == 1:
            begun.set()
            await anyio.sleep_forever()
        return "acted"

    one = agent(calls("act"), {"text": "Done."}, tools=[act])
    await crashed_in_a_tool(in_memory, one, begun)
    async with in_memory(one) as rt:
        with anyio.fail_after(5):
            result = await rt.session("s", agent=one).run()
        if on_crash == "ask":
            (call,) = result.pending
            assert (call.kind, call.tool, call.effect_id) == ("approval", "act", ran[0][0])
            assert (await rt.session("s").get()).to_json()["pending"][0]["reason"] == "interrupted"
            await rt.approve(call.id, by="ana")
            result = await rt.session("s", agent=one).run()
        assert (result.state, result.output) == ("completed", "Done.")
        (told,) = await tool_results(rt)
        if on_crash == "tell":
            assert told["interrupted"]
            assert "may or may not have taken effect" in told["result"]
        else:
            assert told["result"] == "acted"
    effects = {effect for effect, _ in ran}
    assert len(effects) == 1
    assert [attempt for _, attempt in ran] == ([1] if on_crash == "tell" else [1, 2])
    assert [r.turn for r in model_of(one).requests] == [1, 2]


async def test_a_deferred_call_whose_start_was_cut_off_stays_open_and_says_so(
    in_memory: MakeRuntime,
) -> None:
    begun = anyio.Event()

    @tool(deferred=True)
    async def build(call: PendingCall) -> str:
        begun.set()
        await anyio.sleep_forever()
        return "never"

    one = agent(calls("build"), {"text": "Built."}, tools=[build])
    await crashed_in_a_tool(in_memory, one, begun)
    async with in_memory(one) as rt:
        result = await rt.session("s", agent=one).run()
        assert result.state == "waiting"
        assert problem_of(result) is not None
        assert code_of(result) == "START_INTERRUPTED"
        (call,) = [call async for call in rt.pending()]
        assert problem_of(call) is not None
        await rt.submit_result(call.id, "it had begun")
        assert (await rt.session("s", agent=one).run()).output == "Built."
