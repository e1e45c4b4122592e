"""Pieces of answers in another process than the one that drives."""

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from perdure import Agent, Delta, Event, Result, Runtime, tool
from perdure.core.conversation.messages import Answer
from perdure.runtime import streaming as bus
from perdure.runtime.models.base import Request
from perdure.store.base import BROADCAST_BYTES
from perdure.store.memory import MemoryStore
from perdure.store.sqlite.store import SqliteStore

MakeRuntime = Callable[..., Runtime]


class Slow:
    """A model that stops after some words, and before its end, until it may go on."""

    name = "slow"

    def __init__(self, *words: str, kind: Any = "text") -> None:
        self.words = words
        self.kind = kind
        self.said = anyio.Event()  # the first two words
        self.goes_on = anyio.Event()
        self.may_end = anyio.Event()
        self.asked = 0

    def hurry(self) -> "Slow":
        """Let it stop nowhere."""
        self.goes_on.set()
        self.may_end.set()
        return self

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        self.asked += 1
        for n, word in enumerate(self.words):
            if n == 2:
                self.said.set()
                await self.goes_on.wait()
            yield Delta(request.session_id, request.turn, self.kind, word)
            await anyio.lowlevel.checkpoint()
        await self.may_end.wait()
        text = "".join(self.words) if self.kind == "text" else "Done."
        yield Answer(text=text, provider="slow", model="slow")


class Items(list[Any]):
    """What a reader has seen, for who waits until that is enough."""

    def __init__(self) -> None:
        self._came = anyio.Event()

    async def read(self, rt: Runtime, one: Agent[str]) -> None:
        async for item in rt.session("s", agent=one).stream():
            self.append(item)
            self._came.set()

    async def until(self, text: str) -> None:
        while text_of(self) != text:
            self._came = anyio.Event()
            await self._came.wait()


def text_of(items: list[Any]) -> str:
    text = ""
    for one in items:
        if isinstance(one, Delta):
            text = "" if one.kind == "reset" else text + one.text
        elif isinstance(one, Event) and one.type == "assistant":
            break
    return text


async def test_another_runtime_sees_the_text_as_it_comes_also_what_it_missed(
    runtime: MakeRuntime,
) -> None:
    model = Slow("I ", "look ", *["into ", "it "] * 1_000)
    one, whole = Agent("helper", model=model), "".join(model.words)
    items = Items()
    async with runtime(one) as driver, runtime(one) as watcher:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(driver.session("s", agent=one).run, "Go")
                await model.said.wait()
                tasks.start_soon(items.read, watcher, one)
                await items.until("I look ")
                model.goes_on.set()
                await items.until(whole)
                model.may_end.set()
    assert model.asked == 1
    assert text_of(items) == whole
    types = [one.type for one in items if isinstance(one, Event)]
    assert types == ["agent_start", "assistant", "agent_complete"]
    assert isinstance(items[-1], Result)


async def test_nothing_is_whispered_of_a_session_to_which_nobody_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    right = SqliteStore.broadcast

    def whisper(self: SqliteStore, topic: str, data: bytes) -> None:
        told.append(topic)
        right(self, topic, data)

    monkeypatch.setattr(SqliteStore, "broadcast", whisper)
    model = Slow("Hi.").hurry()
    one, url = Agent("helper", model=model), f"sqlite:///{tmp_path}/h.db"
    async with Runtime(url, agents=[one]) as rt, Runtime(url, agents=[one]) as other:
        await other.session("t", agent=one).run("Go")
        await rt.session("s", agent=one).run("Go")
    assert told == []


async def test_arguments_of_an_agent_with_secret_ones_are_not_whispered(
    memory: MemoryStore,
) -> None:
    @tool(redact=["card"])
    def pay(card: str) -> str:
        """Pay."""
        return card

    model = Slow("4111", "1111", "1111", kind="args")
    one = Agent("helper", model=model, tools=[pay])
    whispered: list[bytes] = []
    with memory.subscribe(lambda _, data: whispered.append(data)):
        async with Runtime(memory, agents=[one]) as driver, Runtime(memory, agents=[one]) as other:
            items = Items()
            with anyio.fail_after(10):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(driver.session("s", agent=one).run, "Go")
                    await model.said.wait()
                    tasks.start_soon(items.read, other, one)
                    await anyio.wait_all_tasks_blocked()
                    model.hurry()
    assert not any(isinstance(one, Delta) for one in items)
    assert whispered  # that somebody listens
    assert not any(b"1111" in one for one in whispered)


async def test_a_whisper_that_makes_no_sense_is_ignored(memory: MemoryStore) -> None:
    model = Slow("Hi.").hurry()
    one = Agent("helper", model=model)
    async with Runtime(memory, agents=[one]) as rt:
        await rt.session("s", agent=one).run("Go")
        for topic in ("delta", "readers", "other"):
            for data in (b"", b"[]", b'{"a": 1}', b"\xff", b'["x", ["", "s"], [1, [1, 1], 0]]'):
                memory.broadcast(topic, data)
        assert (await rt.session("s", agent=one).run("Go")).output == "Hi."


async def test_who_has_stopped_listening_is_forgotten(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus, "READER_TTL_S", 0.0)
    here, there = bus.Bus(memory), bus.Bus(memory)
    heard: list[bus.DeltaChunk] = []
    with here.connect(), there.connect(), there.subscribe("", "s", heard.append):
        here.publish_alone("", Delta("s", 1, "progress", "half"))
    assert heard == []


async def test_a_long_piece_is_whispered_in_parts(memory: MemoryStore) -> None:
    here, there = bus.Bus(memory), bus.Bus(memory)
    heard: list[bus.DeltaChunk] = []
    sizes: list[int] = []
    long = "\x01ü😀'\"\\" * 5_000
    with (
        memory.subscribe(lambda _, data: sizes.append(len(data))),
        here.connect(),
        there.connect(),
        there.subscribe("", "s", heard.append),
        here.stream_response(("", "s"), 1, (1, 1)) as say,
    ):
        say(Delta("s", 1, "text", long))
    assert "".join(one.text for one in heard) == long
    assert [one.at for one in heard] == [
        sum(len(one.text) for one in heard[:n]) for n in range(len(heard))
    ]
    assert max(sizes) <= BROADCAST_BYTES


async def test_many_listeners_make_themselves_known_in_parts(memory: MemoryStore) -> None:
    here, there = bus.Bus(memory), bus.Bus(memory)
    names = [f"{n:0200}" for n in range(100)]
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(there.subscribe("", name, lambda _: None))
        with here.connect(), there.connect():
            assert all(here.has_remote_readers(("", name)) for name in names)


async def test_a_character_in_two_halves_is_whole_in_the_end(tmp_path: Path) -> None:
    one = Agent("a", model=Slow("\ud83d", "\ude00", "!").hurry())
    url = f"sqlite:///{tmp_path}/h.db"
    async with Runtime(url, agents=[one]) as rt, Runtime(url, agents=[one]) as other:
        with other._resources.bus.subscribe("", "s", lambda _: None):
            seen = [item async for item in rt.session("s", agent=one).stream("Go")]
    assert "".join(item.text for item in seen if isinstance(item, Delta)) == "??!"
    assert seen[-1].output == "\N{GRINNING FACE}!"  # type: ignore[union-attr]
