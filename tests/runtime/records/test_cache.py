"""What a process remembers of sessions that rest: going on reads nothing, and is never wrong."""

import asyncio
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perdure import Agent, Conflict, Event, NotFound, Runtime, host, tool
from perdure.core.log import codec, events
from perdure.core.session.naming import SessionRecord
from perdure.runtime.records import cache as near
from perdure.runtime.records.cache import CachedSession, SessionCache
from perdure.runtime.records.entries import PendingEntry, SessionEntry
from perdure.runtime.records.log import Log, as_record
from perdure.store.base import Check, Entry, Heads, Page, Put, Slice, Write
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel

MakeRuntime = Callable[..., Runtime]


@tool(deferred=True)
async def start() -> None:
    """Start."""


@tool(external=True)
async def upload() -> None:
    """Upload."""


def agent(*turns: dict[str, Any], name: str = "helper") -> Agent[str]:
    script = turns or ({"calls": [{"tool": "start"}]}, {"text": "Done."})
    return Agent(name, model=ScriptedModel(script), tools=[start])


class Counting(MemoryStore):
    """Counts what is read of sessions and calls."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()
        self.commits = 0

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        self.asked["read"] += 1
        return await super().read(stream, after, limit)

    async def get(self, kind: str, key: str) -> Entry | None:
        self.asked["get"] += 1
        return await super().get(kind, key)

    async def find(self, kind: str, **conditions: Any) -> Page:
        self.asked["find"] += 1
        return await super().find(kind, **conditions)

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> Heads:
        self.commits += 1
        return await super().commit(writes, puts, checks)


async def test_a_pause_and_resume_reads_only_whether_the_session_is_new_and_intact() -> None:
    store, one = Counting(), agent()
    async with Runtime(store, agents=[one]) as rt:
        store.asked.clear()
        session = rt.session("s", agent=one)
        (call,) = (await session.run("Go", key="k")).pending
        await rt.submit_result(call.id, "ok")
        assert (await session.run()).output == "Done."
    assert store.asked == {"get": 1, "read": 1}


@pytest.mark.parametrize("call, commits", [("ask_user", 4), ("upload", 4), ("start", 5)])
async def test_a_pause_and_resume_is_four_commits_and_one_more_if_something_starts(
    call: str, commits: int
) -> None:
    """E5: message, turn, answer, last turn; that a start returned can be known only after it."""
    asked = {"tool": call, "args": {"question": "Which?"} if call == "ask_user" else {}}
    script = ScriptedModel([{"calls": [asked]}, {"text": "Done."}])
    store, one = Counting(), Agent("helper", model=script, tools=[start, upload, "ask_user"])
    async with Runtime(store, agents=[one]) as rt:
        store.commits = 0
        session = rt.session("s", agent=one)
        (waits,) = (await session.run("Go", key="k")).pending
        if call == "ask_user":
            await rt.respond(waits.id, "This one", by="ana")
        else:
            await rt.submit_result(waits.id, "ok")
        assert (await session.run()).output == "Done."
        assert store.commits == commits


async def test_what_another_process_wrote_meanwhile_is_seen(memory: MemoryStore) -> None:
    """A message, which this one has not seen, comes before the answer."""
    ours, theirs = agent(), agent()
    async with Runtime(memory, agents=[ours]) as rt, Runtime(memory, agents=[theirs]) as other:
        (call,) = (await rt.session("s", agent=ours).run("Go")).pending
        await other.session("s", agent=theirs).send("Hurry")
        await rt.submit_result(call.id, "ok")
        assert (await rt.session("s", agent=ours).run()).output == "Done."
        assert isinstance(ours.model, ScriptedModel)
        assert len(ours.model.requests[1].messages) == 4


async def test_a_session_that_ended_elsewhere_is_shown_as_it_ended(memory: MemoryStore) -> None:
    ours, theirs = agent(), agent()
    async with Runtime(memory, agents=[ours]) as rt, Runtime(memory, agents=[theirs]) as other:
        (call,) = (await rt.session("s", agent=ours).run("Go")).pending
        await other.submit_result(call.id, "theirs")
        await other.session("s", agent=theirs).run()
        with pytest.raises(Conflict, match="was completed"):
            await rt.submit_result(call.id, "ours")
        assert (await rt.submit_result(call.id, "theirs")).status == "completed"
        assert (await rt.session("s", agent=ours).run()).output == "Done."


async def test_a_session_that_failed_elsewhere_gets_a_new_run(memory: MemoryStore) -> None:
    """As one that failed here does."""
    failing = agent({"calls": [{"tool": "start"}]}, {"error": "overloaded"})
    ours = agent()
    async with Runtime(memory, agents=[ours]) as rt, Runtime(memory, agents=[failing]) as other:
        (call,) = (await rt.session("s", agent=ours).run("Go")).pending
        await other.submit_result(call.id, "ok")
        assert (await other.session("s", agent=failing).run()).state == "failed"
        assert (await rt.session("s", agent=ours).run()).output == "Done."


async def test_a_session_that_was_deleted_elsewhere_is_not_there(memory: MemoryStore) -> None:
    ours, theirs = agent(), agent()
    async with Runtime(memory, agents=[ours]) as rt, Runtime(memory, agents=[theirs]) as other:
        (call,) = (await rt.session("s", agent=ours).run("Go")).pending
        await other.session("s").delete()
        with pytest.raises(NotFound):
            await rt.submit_result(call.id, "ok")
        with pytest.raises(NotFound):
            await rt.session("s", agent=ours).run()
        again = await rt.session("s", agent=ours).run("Go")  # the name is free
        assert (again.state, again.seq) == ("waiting", 7)


async def test_a_remembered_session_still_belongs_to_its_agent(in_memory: MakeRuntime) -> None:
    one, other = agent(), agent(name="other")
    async with in_memory(one, other) as rt:
        await rt.session("s", agent=one).run("Go")
        for asked in (rt.session("s", agent=other).run(), rt.session("s", agent=other).run("Hi")):
            with pytest.raises(Conflict) as conflict:
                await asked
            assert conflict.value.code == "SESSION_OF_OTHER_AGENT"


async def test_a_remembered_call_belongs_to_its_tenant(in_memory: MakeRuntime) -> None:
    one = agent()
    async with in_memory(one) as rt:
        (call,) = (await rt.tenant("ana").session("s", agent=one).run("Go")).pending
        with pytest.raises(NotFound):
            await rt.tenant("ben").submit_result(call.id, "ok")


async def test_a_store_that_is_opened_again_may_be_another_one(
    tmp_path: Path, clock: ManualClock
) -> None:
    """A backup was restored: the same name, the same length, another content."""
    one = Agent("a", model=ScriptedModel([{"text": "One."}, {"text": "Two."}]))
    rt = Runtime(f"sqlite:///{tmp_path}/h.db", agents=[one], clock=clock)
    async with rt:
        await rt.session("s", agent=one).run("first")
    (tmp_path / "h.db").unlink()
    async with Runtime(f"sqlite:///{tmp_path}/h.db", agents=[one]) as other:
        await other.session("s", agent=one).run("second")
    async with rt:
        await rt.session("s", agent=one).run("third")
        said: list[Event] = [e for e in await rt.session("s").events() if e.type == "user"]
    assert isinstance(one.model, ScriptedModel)
    asked = [getattr(m, "content", None) for m in one.model.requests[-1].messages]
    assert [e.data["content"] for e in said] == ["second", "third"]
    assert "first" not in asked


async def test_a_delegation_reads_no_log_and_no_task_again() -> None:
    """What this process wrote of a child and its parent, it knows."""
    store = ReadLogs()
    research = Agent("research", model=ScriptedModel([{"text": "Found."}]))
    lead = Agent("lead", model=ScriptedModel([{"text": "Read."}] * 4), sub_agents=[research])
    async with Runtime(store, agents=[lead]) as rt:
        parent = rt.session("s", agent=lead)
        await parent.run("Go")
        for _ in range(2):
            await rt.spawn(research, "Tides?", parent="s")
            store.asked.clear()
            store.commits = 0
            assert (await parent.run()).output == "Read."
            assert store.asked["log"] == store.asked["child"] == 0
            assert store.commits == 3  # the child's turn and end, the mail, the parent's turn


class ReadLogs(Counting):
    """Counts reads of records and of the entries of tasks."""

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        self.asked["log"] += limit != 0
        return await super().read(stream, after, limit)

    async def get(self, kind: str, key: str) -> Entry | None:
        self.asked[kind] += 1
        return await super().get(kind, key)


# --- how much ---------------------------------------------------------------------------------


def rested(name: str, size: int = 100) -> CachedSession:
    log = Log(MemoryStore(), f"s//{name}")
    log.size = size
    known = SessionEntry.new(SessionRecord(id=name, agent="a"), log.stream)
    call: Any = None
    return CachedSession(log, known, {f"p-{name}": PendingEntry(log.stream, 1, call)})


def test_only_so_many_sessions_are_kept() -> None:
    """G8"""
    kept = SessionCache()
    for n in range(near.MAX_SESSIONS + 10):
        kept.add(rested(str(n)))
    assert kept.get("s//9") is None
    assert kept.pending_entry("p-9") is None
    assert kept.get("s//10") is not None
    assert kept.pending_entry("p-10") is not None


def test_only_so_much_of_their_content_is_kept() -> None:
    """G8"""
    kept, large = SessionCache(), near.MAX_BYTES // 8
    for n in range(10):
        kept.add(rested(str(n), large))
    kept.add(rested("huge", near.MAX_BYTES + 1))
    there = [n for n in range(10) if kept.get(f"s//{n}")]
    assert there == list(range(2, 10))
    assert kept.get("s//huge") is None
    kept.add(rested("long", near.MAX_BYTES - large))
    there = [n for n in range(10) if kept.get(f"s//{n}")]
    assert there == [9]
    assert kept.get("s//long") is not None


async def test_a_long_session_that_parked_here_is_not_decoded_for_an_approval(
    in_memory: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool(requires_approval=True)
    def pay() -> str:
        return "paid"

    clerk = Agent(
        "clerk",
        model=ScriptedModel([{"calls": [{"tool": "pay"}]}] * 2 + [{"text": "Done."}]),
        tools=[pay],
    )
    decoded = 0
    decode = codec.decode

    def counted(kind: str, data: bytes) -> events.Event:
        nonlocal decoded
        decoded += 1
        return decode(kind, data)

    async with in_memory(clerk) as rt:
        result = await rt.session("s", agent=clerk).run("x" * (near.MAX_BYTES // 4))
        monkeypatch.setattr(codec, "decode", counted)
        for _ in range(2):
            await rt.approve(result.pending[0].id, by="ana")
            result = await rt.session("s").run()
    assert (result.output, decoded) == ("Done.", 0)


async def test_only_so_much_of_the_logs_before_commands_is_kept() -> None:
    """G8"""
    decoded, large = near.DecodedLogs(), near.MAX_LOG_BYTES // 4
    for n in range(6):
        decoded.add(rested(str(n), large).log)
    decoded.add(rested("short", near.MIN_LOG_BYTES - 1).log)
    decoded.add(rested("huge", near.MAX_LOG_BYTES + 1).log)
    there = [
        name for name in ("0", "1", "2", "3", "4", "5", "short", "huge") if is_taken(decoded, name)
    ]
    assert there == ["2", "3", "4", "5"]
    assert not is_taken(decoded, "5")  # a log has one owner


async def test_a_log_before_a_command_is_dropped_after_a_few_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G8"""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(host, "elapsed", lambda: clock.now)
    decoded = near.DecodedLogs()
    decoded.add(rested("old", near.MIN_LOG_BYTES).log)
    clock.now += near.LOG_S
    assert not is_taken(decoded, "old")
    monkeypatch.setattr(near, "LOG_S", 0.0)
    log = rested("dropped", near.MIN_LOG_BYTES).log
    decoded.add(log)
    kept = weakref.ref(log)
    del log
    for _ in range(3):  # rounds of the event loop, whose timer drops it
        await asyncio.sleep(0)
    assert kept() is None


def is_taken(decoded: near.DecodedLogs, name: str) -> bool:
    return decoded.take(f"s//{name}") is not None


def test_facts_of_others_are_folded_once_when_the_session_is_needed() -> None:
    """The ends of n children copy the table of children once, not n times."""
    kept, session = SessionCache(), rested("s")
    log = session.log
    kept.add(session)
    facts = [events.Delegation(task_id=f"bg_{n}", session_id=f"s_{n}", agent="a") for n in range(5)]
    for head, fact in enumerate(facts, 1):
        write = Write(log.stream, [as_record(fact, at=head)])
        kept.extend(write, [fact], {log.stream: head})
    assert (log.state.head, session.head) == (0, 5)
    assert kept.get(log.stream) is session
    assert [*log.state.children] == [f"bg_{n}" for n in range(5)]
    assert [event.at for event in log.events] == [1, 2, 3, 4, 5]
    gap = Write(log.stream, [as_record(facts[0], at=9)])
    kept.extend(gap, facts[:1], {log.stream: 9})  # another process has written in between
    assert session.head == 5


def test_only_so_many_tasks_are_kept() -> None:
    """G8"""
    kept = SessionCache()
    for n in range(near.MAX_TASKS + 1):
        kept.add_task(Entry("child", str(n), "s", 1, "running", None, b""))
    assert kept.task("0") is None
    assert kept.task("1") is not None
    kept.remove_task("1")
    assert kept.task("1") is None
