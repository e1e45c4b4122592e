"""Events over HTTP: as JSON and as they come, nothing missed and nothing doubled."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.support.http_client import Client, MakeClient
from tests.support.http_shop import TOKENS, agent, parked
from tests.support.shop import ran, refund
from tests.support.sse import Reader, reading

from perdure import Agent, Runtime, asgi
from perdure.serve.http import event_streams as following
from perdure.serve.http import sse
from perdure.serve.http.app import application
from perdure.serve.http.auth import token_authenticator
from perdure.serve.http.middleware import Rules
from perdure.serve.limits import Rate
from perdure.store.base import Feed, Record, Slice, Unavailable, Write
from perdure.store.memory import MemoryStore
from perdure.store.shared.paging import END
from perdure.testing import ManualClock, ScriptedModel

GREETS = Agent("greets", model=ScriptedModel([{"text": f"Hello {n}."} for n in range(400)]))


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@pytest.fixture
async def rt(clock: ManualClock) -> AsyncIterator[Runtime]:
    async with Runtime(MemoryStore(clock), agents=[agent(), GREETS]) as opened:
        yield opened


@pytest.fixture
def app(rt: Runtime) -> Any:
    return asgi(rt, auth=TOKENS, ui=False)


def without_limit(rt: Runtime) -> Any:
    """Return the application for many readers at one address."""
    many = Rate(1_000_000, 1_000_000)
    return application(rt, token_authenticator(TOKENS), Rules(per_source=many, per_id=many))


def hub_of(app: Any) -> sse.Hub:
    found: sse.Hub = app._app._app_state.hub
    return found


async def seqs(reader: Reader, last: int) -> list[int]:
    found: list[int] = []
    while not found or found[-1] < last:
        found.append((await reader.next()).data["seq"])
    return found


# --- as JSON --------------------------------------------------------------------------------------


async def test_the_whole_story_can_be_read_back(rt: Runtime, client: Client) -> None:
    await parked(rt)
    answer = (await client.get("/sessions/s/events")).json()
    assert answer["next"] is None
    assert answer["events"] == [one.to_json() for one in await rt.session("s").events()]
    after, found = 0, []
    while True:
        page = (await client.get(f"/sessions/s/events?after={after}&limit=4")).json()
        found += page["events"]
        if page["next"] is None:
            break
        after = int(page["next"])
    assert found == answer["events"]
    for query in ("after=-1", "after=x", "limit=0", "limit=1001"):
        assert (await client.get(f"/sessions/s/events?{query}")).status_code == 400
    assert (await client.get("/sessions/none/events")).status_code == 404


async def test_the_feed_has_the_events_of_all_sessions(
    rt: Runtime, client: Client, client_of: MakeClient, app: Any
) -> None:
    await rt.session("a", agent=GREETS).run("Hi")
    await rt.tenant("acme").session("b", agent=GREETS).run("Hi")
    events = (await client.get("/events")).json()["events"]
    assert {(one["tenant"], one["sessionID"]) for one in events} == {("", "a"), ("acme", "b")}
    assert sorted(one["pos"] for one in events) == [one["pos"] for one in events]
    after, found = 0, []
    while True:
        page = (await client.get(f"/events?after={after}&limit=3")).json()
        found += page["events"]
        if page["next"] is None:
            break
        after = page["next"]
    assert found == events
    seen = {"Last-Event-ID": str(events[-2]["pos"])}
    assert (await client.get("/events", headers=seen)).json()["events"] == events[-1:]
    own = (await client_of(app, as_="acme-viewer").get("/events")).json()["events"]
    assert {one["sessionID"] for one in own} == {"b"}


# --- as they come ---------------------------------------------------------------------------------


async def test_what_is_there_and_what_comes_is_sent_once(rt: Runtime, app: Any) -> None:
    session = rt.session("s", agent=GREETS)
    before = (await session.run("Hi")).seq
    async with reading(app, "/sessions/s/events") as reader:
        assert await seqs(reader, before) == list(range(1, before + 1))
        assert reader.status == 200
        assert reader.headers["content-type"].startswith("text/event-stream")
        after = (await session.run("Again")).seq
        assert await seqs(reader, after) == list(range(before + 1, after + 1))


async def test_an_event_on_the_wire_is_the_event(rt: Runtime, app: Any) -> None:
    await rt.session("s", agent=GREETS).run("Hi")
    (first, *_) = await rt.session("s").events()
    async with reading(app, "/sessions/s/events") as reader:
        opening = await reader.block()
        assert opening.is_comment
        sent = await reader.next()
        assert (sent.id, sent.event, sent.data) == ("1", "user", first.to_json())


async def test_a_reader_goes_on_after_the_last_it_saw(rt: Runtime, app: Any) -> None:
    """The header counts more than the address, which an EventSource asks for again."""
    last = (await rt.session("s", agent=GREETS).run("Hi")).seq
    async with reading(app, "/sessions/s/events?after=2") as reader:
        assert await seqs(reader, last) == list(range(3, last + 1))
    async with reading(app, "/sessions/s/events?after=0", last_event_id="3") as reader:
        assert await seqs(reader, last) == list(range(4, last + 1))
    async with reading(app, "/sessions/s/events", last_event_id="x") as reader:
        await reader.ended.wait()
        assert reader.status == 400
    async with reading(app, "/sessions/none/events") as reader:
        await reader.ended.wait()
        assert reader.status == 404


async def test_a_long_log_is_read_in_pages(rt: Runtime, app: Any) -> None:
    session = rt.session("s", agent=GREETS)
    last = 0
    for _ in range(150):
        last = (await session.run("Hi")).seq
    assert last > 450
    async with reading(app, "/sessions/s/events") as reader:
        assert await seqs(reader, last) == list(range(1, last + 1))


@pytest.mark.parametrize("path", ["/sessions/s/events", "/events?after=0"])
async def test_a_slow_reader_keeps_nothing_waiting_and_misses_nothing(
    rt: Runtime, app: Any, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """What does not fit into its inbox is read from the store when it comes to it."""
    monkeypatch.setattr(sse, "MAX_ITEMS", 8)
    session = rt.session("s", agent=GREETS)
    last = (await session.run("Hi")).seq
    async with (
        reading(app, path, room=0) as slow,
        reading(app, path) as quick,
    ):
        await slow.next()
        for _ in range(20):
            last = (await session.run("More")).seq
        assert (await seqs(quick, last))[-1] == last
        (inbox, _) = (one for boxes in hub_of(app)._buffers.values() for one in boxes)
        assert len(inbox._items) <= 8
        assert await seqs(slow, last) == list(range(2, last + 1))


async def test_large_events_do_not_pile_up(
    rt: Runtime, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "MAX_BYTES", 10)
    session = rt.session("s", agent=GREETS)
    await session.run("Hi")
    async with reading(app, "/sessions/s/events") as reader:
        await reader.next()
        last = (await session.run("x" * 1000)).seq
        assert await seqs(reader, last) == list(range(2, last + 1))


async def test_pieces_of_answers_come_before_their_event(rt: Runtime, app: Any) -> None:
    session = rt.session("s", agent=GREETS)
    await session.run("Hi")
    async with (
        reading(app, "/sessions/s/events?after=4&deltas=1") as reader,
        reading(app, "/sessions/s/events?after=4") as plain,
    ):
        while not all(boxes for boxes in hub_of(app)._buffers.values()):
            await anyio.lowlevel.checkpoint()
        await reader.block()
        await anyio.wait_all_tasks_blocked()
        await session.run("Again")
        found = await reader.until("agent_complete")
        pieces = [one for one in found if one.event == "delta"]
        assert pieces
        assert all(one.id is None for one in pieces)
        assert {one.data["kind"] for one in pieces} == {"text"}
        assert "".join(one.data["text"] for one in pieces) == "Hello 1."
        names = [one.event for one in found]
        assert names.index("delta") < names.index("assistant")
        assert "delta" not in names[names.index("assistant") :]
        assert "delta" not in [one.event for one in await plain.until("agent_complete")]


async def test_silence_is_broken_by_signs_of_life(
    rt: Runtime, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0.52"""
    await rt.session("s", agent=GREETS).run("Hi")
    last = (await rt.session("s").get()).seq
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.01)
    async with (
        reading(app, f"/sessions/s/events?after={last}") as one,
        reading(app, "/events?after=0") as all_of_them,
    ):
        await one.block()
        assert (await one.block()).is_comment
        await all_of_them.until("agent_complete")
        sign = await all_of_them.block()
        assert sign.is_comment
        assert sign.id is not None  # up to where everything was sent


class Away(MemoryStore):
    """A store that is not there for a while."""

    is_away = False

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        if self.is_away:
            raise Unavailable("the database is away")
        return await super().read(stream, after, limit)

    async def tail(self, cursor: str, limit: int = 500) -> Feed:
        if self.is_away:
            raise Unavailable("the database is away")
        return await super().tail(cursor, limit)


@pytest.mark.parametrize("path", ["/sessions/s/events", "/events?after=0"])
async def test_who_follows_stays_while_the_store_is_away(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The same answer goes on afterwards, with nothing missed and nothing doubled."""
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.01)
    monkeypatch.setattr(following, "STORE_RETRY_S", 0.01)
    store = Away(clock)
    async with Runtime(store, agents=[GREETS]) as rt:
        session = rt.session("s", agent=GREETS)
        before = (await session.run("Hi")).seq
        async with reading(asgi(rt, auth=TOKENS, ui=False), path) as reader:
            assert await seqs(reader, before) == list(range(1, before + 1))
            store.is_away = True
            for _ in range(20):  # signs of life, and not the end
                assert (await reader.block()).is_comment
            store.is_away = False
            after = (await session.run("Hi")).seq
            assert await seqs(reader, after) == list(range(before + 1, after + 1))


async def test_a_deleted_session_ends_its_stream(
    rt: Runtime, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.01)
    await rt.session("s", agent=GREETS).run("Hi")
    async with reading(app, "/sessions/s/events") as reader:
        await reader.next()
        await rt.session("s").delete()
        with anyio.fail_after(5):
            await reader.ended.wait()


async def test_streams_end_when_the_server_is_told_to_stop(rt: Runtime) -> None:
    closing = anyio.Event()
    app = application(rt, token_authenticator(TOKENS), Rules(), closing)
    await rt.session("s", agent=GREETS).run("Hi")
    async with reading(app, "/sessions/s/events") as one, reading(app, "/events") as other:
        await one.next()
        await other.block()
        closing.set()
        with anyio.fail_after(5):
            await one.ended.wait()
            await other.ended.wait()
    async with reading(app, "/sessions/s/events") as late:
        with anyio.fail_after(5):
            await late.ended.wait()


async def test_a_reader_that_takes_nothing_does_not_hold_up_a_server_that_stops(
    rt: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "CLOSE_GRACE_S", 0)
    closing = anyio.Event()
    app = application(rt, token_authenticator(TOKENS), Rules(), closing)
    await rt.session("s", agent=GREETS).run("Hi")
    over = anyio.Event()

    async def served(*given: Any) -> None:
        await app(*given)
        over.set()

    async with reading(served, "/sessions/s/events", room=1) as reader:
        await reader.next()
        closing.set()
        with anyio.fail_after(5):
            await over.wait()


async def test_who_leaves_is_forgotten(rt: Runtime, app: Any) -> None:
    await rt.session("s", agent=GREETS).run("Hi")
    async with reading(app, "/sessions/s/events") as reader:
        await reader.next()
        assert hub_of(app)._buffers
    assert not hub_of(app)._buffers


async def test_two_hundred_readers_cost_one_reader_of_the_feed(
    rt: Runtime, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = rt.session("s", agent=GREETS)
    last = (await session.run("Hi")).seq
    store, reads = rt._resources.store, 0
    read = store.read

    async def counted(*given: Any, **more: Any) -> Any:
        nonlocal reads
        reads += 1
        return await read(*given, **more)

    async with anyio.create_task_group() as tasks:
        readers: list[Reader] = []
        done = anyio.Event()

        async def follow() -> None:
            async with reading(asgi_without_limit, f"/sessions/s/events?after={last}") as reader:
                await reader.block()
                readers.append(reader)
                await done.wait()

        asgi_without_limit = without_limit(rt)
        for _ in range(200):
            tasks.start_soon(follow)
        while len(readers) < 200:
            await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
        monkeypatch.setattr(store, "read", counted)
        after = (await session.run("Again")).seq
        for reader in readers:
            assert await seqs(reader, after) == list(range(last + 1, after + 1))
        assert reads < 50  # the run's own, and not one for each reader
        done.set()


async def test_the_driver_may_be_in_another_place(clock: ManualClock, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/h.db"
    async with Runtime(url) as watching, Runtime(url, agents=[GREETS]) as driving:
        last = (await driving.session("s", agent=GREETS).run("Hi")).seq
        app = asgi(watching, auth=TOKENS)
        async with reading(app, "/sessions/s/events") as reader:
            assert (await seqs(reader, last))[-1] == last
            more = (await driving.session("s").run("Again")).seq
            assert await seqs(reader, more) == list(range(last + 1, more + 1))


async def test_nothing_falls_between_what_is_read_and_what_comes(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the first reader comes before the feed is followed: it waits for that."""
    store = MemoryStore(clock)
    tail, asked, free = store.tail, anyio.Event(), anyio.Event()

    async def held(cursor: str, limit: int = 500) -> Any:
        if cursor == END:
            asked.set()
            await free.wait()
        return await tail(cursor, limit)

    async with Runtime(store) as watching, Runtime(store, agents=[GREETS]) as driving:
        await driving.session("s", agent=GREETS).send("Hi")
        monkeypatch.setattr(store, "tail", held)
        async with reading(asgi(watching, auth=TOKENS), "/events?after=0") as reader:
            await asked.wait()
            await anyio.wait_all_tasks_blocked()
            await driving.session("s").send("More")
            free.set()
            found = [(await reader.next()).data["data"]["content"] for _ in range(2)]
            assert found == ["Hi", "More"]


# --- the feed -------------------------------------------------------------------------------------


async def test_the_feed_begins_now_or_where_one_was(rt: Runtime, app: Any) -> None:
    await rt.session("s", agent=GREETS).run("Hi")
    async with reading(app, "/events") as reader:
        opening = [await reader.block(), await reader.block()]
        place = opening[1].id
        assert place is not None  # so that who never got an event can come back as well
        await anyio.wait_all_tasks_blocked()
        await rt.session("t", agent=GREETS).run("Hi")
        found = await reader.until("agent_complete")
        assert {one.data["sessionID"] for one in found} == {"t"}
        assert [one.id for one in found] == [str(one.data["pos"]) for one in found]
    async with reading(app, "/events", last_event_id=place) as again:
        assert [one.data for one in await again.until("agent_complete")] == [
            one.data for one in found
        ]
    async with reading(app, "/events", as_="acme-viewer", last_event_id="0") as other:
        await rt.tenant("acme").session("u", agent=GREETS).run("Hi")
        seen = await other.until("agent_complete")
        assert {one.data["sessionID"] for one in seen} == {"u"}


async def test_a_damaged_record_hides_no_other(rt: Runtime, app: Any, client: Client) -> None:
    await rt.session("s", agent=GREETS).run("Hi")
    store = rt._resources.store
    await store.commit([Write("s//s", [Record("user", b"{", store.now())])])
    await rt.session("t", agent=GREETS).run("Hi")
    async with reading(app, "/events?after=0") as reader:
        await reader.until("agent_complete")
        assert {one.data["sessionID"] for one in await reader.until("agent_complete")} == {"t"}
    events = (await client.get("/events")).json()["events"]
    assert {one["sessionID"] for one in events} == {"s", "t"}
    assert (await client.get("/sessions/s/events")).status_code == 503


# --- calls that wait ------------------------------------------------------------------------------


async def test_the_life_of_a_call_is_told(rt: Runtime, app: Any) -> None:
    """S0.52"""
    async with reading(app, "/async-tool/events?sessionID=s") as reader:
        await reader.block()
        await anyio.wait_all_tasks_blocked()
        await parked(rt, "other")
        pending = await parked(rt)
        await rt.approve(pending["approval"], by="ana")
        await rt.respond(pending["question"], "blue", by="ana")
        await rt.submit_error(pending["tool"], "broken")
        await rt.session("s").run()
        found = await reader.until("session-resumed")
    assert {one.data["sessionID"] for one in found} == {"s"}
    names = [one.event for one in found]
    assert names.count("created") == 3
    # An approved call lets it go on, whatever else still waits.
    assert names[3:] == ["completed", "session-resuming", "completed", "failed", "session-resumed"]
    assert (found[6].data["pendingID"], found[6].data["tool"]) == (pending["tool"], "deploy")


@pytest.mark.parametrize("after", [None, 0])
async def test_a_session_that_is_cancelled_is_not_reported_as_resuming(
    after: int | None, rt: Runtime, app: Any
) -> None:
    """S0.52"""
    query = "" if after is None else f"?after={after}"
    async with reading(app, f"/async-tool/events{query}") as reader:
        await anyio.wait_all_tasks_blocked()
        await parked(rt)
        await rt.session("s").cancel()
        await rt.session("s").run()  # the driver looks at it once more
        pending = await parked(rt, "other")
        found = await reader.until("created")
        while found[-1].data["sessionID"] != "other":
            found += await reader.until("created")
    assert [one.event for one in found] == [*["created"] * 3, *["cancelled"] * 3, "created"]
    assert found[-1].data["pendingID"] in pending.values()


async def test_a_watcher_of_calls_comes_back_to_where_it_was(rt: Runtime, app: Any) -> None:
    """S0.52: also between the two pieces of news that one event is."""
    pending = await parked(rt)
    for kind in ("question", "approval"):
        await rt.cancel_call(pending[kind])
    await rt.submit_result(pending["tool"], "up")
    await rt.session("s").run()
    async with reading(app, "/async-tool/events?after=0") as reader:
        whole = await reader.until("session-resumed")
    places = [one.id for one in whole]
    assert len(set(places)) == len(places)
    for number, place in enumerate(places[:-1]):
        assert place is not None
        async with reading(app, "/async-tool/events", last_event_id=place) as again:
            rest = await again.until("session-resumed")
        assert rest == whole[number + 1 :], place


async def test_one_approval_is_two_pieces_of_news(rt: Runtime, app: Any) -> None:
    script: list[dict[str, Any]] = [
        {"calls": [{"tool": "refund", "args": {"order": 1, "cents": 5}}]},
        {"text": "Ok."},
    ]
    one = Agent("clerk", model=ScriptedModel(script), tools=[refund])
    result = await rt.session("s", agent=one).run("Go")
    await rt.approve(result.pending[0].id, by="ana")
    await rt.session("s").run()
    async with reading(app, "/async-tool/events?after=0") as reader:
        whole = await reader.until("session-resumed")
    assert [one.event for one in whole] == [
        *("created", "completed", "session-resuming", "session-resumed")
    ]
    assert whole[1].id == f"{whole[2].id}.1"
    async with reading(app, "/async-tool/events", last_event_id=f"{whole[1].id}") as again:
        assert await again.until("session-resumed") == whole[2:]


async def test_a_submitter_sees_the_calls_of_tools_only(rt: Runtime, app: Any) -> None:
    await parked(rt)
    async with reading(app, "/async-tool/events?after=0", as_="submitter") as reader:
        sent = await reader.next()
        assert (sent.event, sent.data["kind"]) == ("created", "tool")
        await rt.cancel_call(sent.data["pendingID"])
        assert (await reader.next()).event == "cancelled"
    async with reading(app, "/events", as_="submitter") as reader:
        await reader.ended.wait()
        assert reader.status == 403


async def test_expired_calls_are_told(rt: Runtime, app: Any, clock: ManualClock) -> None:
    """S0.62"""
    await parked(rt)
    clock.advance("25h")
    await rt.recover()
    async with reading(app, "/async-tools/events?after=0") as reader:
        found = await reader.until("expired")
    assert found[-1].data["tool"] == "deploy"
