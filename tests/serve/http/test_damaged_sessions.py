"""Sessions whose log cannot be read: every command is refused, and nothing is consumed."""

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from click.testing import CliRunner
from tests.support.findings import code_of, problem_of
from tests.support.http_client import Client, MakeClient
from tests.support.http_shop import TOKENS, agent, parked
from tests.support.shop import ran

from perdure import Agent, Runtime, asgi, tool
from perdure.cli.root import cli
from perdure.errors import Corrupt
from perdure.runtime.records import verification
from perdure.store.base import Slice
from perdure.store.memory import MemoryStore
from perdure.store.sqlite.store import SqliteStore
from perdure.testing import ManualClock, ScriptedModel

Ids = dict[str, str]  # pending ids by kind

DAMAGED = "failed to load execution state: event 3 of s//s cannot be read"
COMMANDS: dict[str, Callable[[Runtime, Ids], Awaitable[Any]]] = {
    "approve": lambda rt, ids: rt.approve(ids["approval"], by="ana"),
    "deny": lambda rt, ids: rt.deny(ids["approval"], by="ana"),
    "respond": lambda rt, ids: rt.respond(ids["question"], "red", by="ana"),
    "result": lambda rt, ids: rt.submit_result(ids["tool"], "done"),
    "error": lambda rt, ids: rt.submit_error(ids["tool"], "broken"),
    "cancel": lambda rt, ids: rt.cancel_call(ids["tool"]),
    "message": lambda rt, _: rt.session("s").send("Hurry"),
    "run": lambda rt, _: rt.session("s", agent="shop").run("Hurry"),
    "resume": lambda rt, _: rt.session("s").resume(),
}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "approve": ("/pending/{approval}/approve", {}),
    "approve and wait": ("/pending/{approval}/approve", {"wait": True}),
    "deny": ("/pending/{approval}/deny", {"wait": 1}),
    "respond": ("/pending/{question}/respond", {"output": "red"}),
    "result": ("/async-tool/result", {"pendingID": "{tool}", "result": {"output": "done"}}),
    "error": ("/async-tool/error", {"pendingID": "{tool}", "error": "broken", "wait": True}),
    "message": ("/sessions/s/messages", {"content": "Hurry", "wait": True}),
    "reply": ("/sessions/s/messages", {"content": "yes", "taskID": "{task}"}),
    "new session": ("/sessions", {"sessionID": "s", "agent": "shop", "message": "Hurry"}),
}


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


def opened(database: Path, **options: Any) -> Runtime:
    return Runtime(f"sqlite:///{database}", agents=[agent()], **options)


def set_data(database: Path, data: bytes, seq: int = 3) -> bytes:
    """Replace the data of an event in the file; return what it was."""
    with closing(sqlite3.connect(database)) as connection, connection:
        (before,) = connection.execute("select data from record where seq = ?", (seq,)).fetchone()
        connection.execute("update record set data = ? where seq = ?", (data, seq))
    return before if isinstance(before, bytes) else str(before).encode()


def lose_end(database: Path) -> None:
    """Remove all events but the first three, as a page that was not written does."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("delete from record where seq > 3")


async def check_unconsumed(rt: Runtime, ids: Ids, text: str = "event 3") -> None:
    """Check that the session failed with its error, and that its calls are still open."""
    result = await rt.session("s").get()
    assert (result.state, result.error and result.error.code) == ("failed", "STORE_CORRUPT")
    assert ran[1:] == []
    shown = result.to_json()
    assert shown["error"]["code"] == code_of(shown) == "STORE_CORRUPT"
    assert text in shown["error"]["error"]
    assert {call.id for call in [call async for call in rt.pending()]} == set(ids.values())


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_new_process_refuses_commands_to_a_damaged_session(
    database: Path, command: str
) -> None:
    """S4.22"""
    async with opened(database) as rt:
        ids = await parked(rt)
    set_data(database, b"{")
    async with opened(database) as rt:
        for _ in range(2):
            with anyio.fail_after(5), pytest.raises(Corrupt) as refused:
                await COMMANDS[command](rt, ids)
            assert str(refused.value).startswith(DAMAGED)
            assert "perdure doctor s --fix" in str(refused.value.hint)
        await check_unconsumed(rt, ids)


@pytest.mark.parametrize("command", COMMANDS)
async def test_the_process_that_paused_a_session_refuses_commands_once_it_is_damaged(
    database: Path, command: str
) -> None:
    """S4.22: the state that it has in memory does not count."""
    async with opened(database, worker=True) as rt:
        ids = await parked(rt)
        set_data(database, b"{")
        with anyio.fail_after(5), pytest.raises(Corrupt, match="failed to load execution state"):
            await COMMANDS[command](rt, ids)
        await check_unconsumed(rt, ids)


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("command", COMMANDS)
async def test_a_session_that_lost_its_last_events_refuses_commands(
    database: Path, command: str, is_new: bool
) -> None:
    """S4.22: its stream says how long its log was."""
    async with opened(database) as rt:
        ids = await parked(rt)
        if not is_new:
            await refuse_after_loss(rt, database, ids, command)
    if is_new:
        async with opened(database) as rt:
            await refuse_after_loss(rt, database, ids, command)


async def refuse_after_loss(rt: Runtime, database: Path, ids: Ids, command: str) -> None:
    lose_end(database)
    with anyio.fail_after(5), pytest.raises(Corrupt, match="record 4 of s//s is missing"):
        await COMMANDS[command](rt, ids)
    await check_unconsumed(rt, ids, "record 4 of s//s is missing")


async def test_a_completed_session_that_lost_its_last_events_repeats_nothing(
    tmp_path: Path,
) -> None:
    """G3: neither for a message nor for a worker that finds it due."""
    paid: list[int] = []

    @tool
    def pay(cents: int) -> str:
        paid.append(cents)
        return "paid"

    turns: list[dict[str, Any]] = [{"calls": [{"tool": "pay", "args": {"cents": 7}}]}, {"text": ""}]
    one = Agent("payer", model=ScriptedModel(turns), tools=[pay])
    database, url = tmp_path / "pay.db", f"sqlite:///{tmp_path / 'pay.db'}"
    async with Runtime(url, agents=[one]) as rt:
        assert (await rt.session("s", agent=one).run("Pay")).state == "completed"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("delete from record where seq > 1")
        connection.execute("update stream set due = 1")
    async with Runtime(url, agents=[one], worker=True) as rt:
        with pytest.raises(Corrupt, match="record 2 of s//s is missing"):
            await rt.session("s", agent=one).run("Pay more")
        with pytest.raises(Corrupt):
            await rt.session("s", agent=one).run()
    assert paid == [7]
    result = await anyio.to_thread.run_sync(
        CliRunner().invoke, cli, ["--store", url, "doctor", "s"]
    )
    assert (result.exit_code, "missing events: 2" in result.output) == (7, True), result.output


@pytest.mark.parametrize("request_name", REQUESTS)
async def test_requests_to_a_damaged_session_are_refused(
    database: Path, client_of: MakeClient, request_name: str
) -> None:
    """S4.22: also with `wait`, and by a message that names the task."""
    async with opened(database, worker=True) as rt:
        ids = await parked(rt)
        names = {**ids, "task": str((await rt.session("s").get()).task_id)}
        set_data(database, b"{")
        client: Client = client_of(asgi(rt, auth=TOKENS))
        path, body = REQUESTS[request_name]
        body = {
            name: value.format(**names) if isinstance(value, str) else value
            for name, value in body.items()
        }
        refused = await client.post(path.format(**names), json=body)
        assert refused.status_code == 503, refused.text
        assert refused.json()["error"].startswith(DAMAGED)
        shown = (await client.get("/sessions/s")).json()
        assert (shown["state"], shown["error"]["code"]) == ("failed", "STORE_CORRUPT")
        await check_unconsumed(rt, ids)


async def test_no_process_continues_a_failed_session_from_its_cache(
    database: Path, clock: ManualClock
) -> None:
    """S4.22: another process found the damage, and an expiry wakes the session here."""
    async with opened(database, clock=clock) as rt:
        await parked(rt)
        async with opened(database, clock=clock) as other:
            kept = set_data(database, b"{")
            with pytest.raises(Corrupt):
                await other.session("s").send("Hurry")
        clock.advance("25h")
        await rt.work(once=True)
        assert (await rt.session("s").get()).state == "failed"
        assert not [item for item in ran if item[0] == "refund"]
        set_data(database, kept)


async def test_a_session_that_can_be_read_again_continues_where_it_was(database: Path) -> None:
    """S4.22: nothing was consumed, so the call can be approved after all."""
    async with opened(database) as rt:
        ids = await parked(rt)
        kept = set_data(database, b"{")
        with pytest.raises(Corrupt):
            await rt.approve(ids["approval"], by="ana")
        set_data(database, kept)
        assert (await rt.session("s", agent="shop").run()).state == "waiting"
        assert (await rt.approve(ids["approval"], by="ana")).decision is not None
        await rt.respond(ids["question"], "red", by="ana")
        await rt.submit_result(ids["tool"], "done")
        result = await rt.session("s", agent="shop").run()
        assert (result.state, problem_of(result)) == ("completed", None)
        assert ("refund", 991, 4200) in ran


class _CountingStore(MemoryStore):
    """Remembers which records were read."""

    def __init__(self) -> None:
        super().__init__()
        self.seqs: list[int] = []

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        page = await super().read(stream, after, limit)
        self.seqs += [record.seq for record in page.records]
        return page


async def test_a_log_is_read_completely_once_for_many_commands() -> None:
    """Ten thousand results of one turn must not read its log ten thousand times."""
    store = _CountingStore()
    async with Runtime(store, agents=[agent()]) as rt:
        ids = await parked(rt)
        store.seqs.clear()
        await rt.respond(ids["question"], "red", by="ana")
        head = max(store.seqs)
        assert store.seqs == list(range(1, head + 1))
        await rt.submit_result(ids["tool"], "done")
        assert store.seqs[head:] == []  # this process has written what is newer


async def test_results_that_arrive_at_once_share_one_read_of_the_log() -> None:
    """Also where reading waits for a server, and all of them begin before the first has read."""

    class SlowStore(_CountingStore):
        async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
            await anyio.lowlevel.checkpoint()
            return await super().read(stream, after, limit)

    store = SlowStore()
    async with Runtime(store, agents=[agent()]) as rt:
        ids = await parked(rt)
        store.seqs.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(rt.respond, ids["question"], "red", by="ana"))
            tasks.start_soon(partial(rt.submit_result, ids["tool"], "done"))
            tasks.start_soon(partial(rt.deny, ids["approval"], by="ana"))
        assert store.seqs == list(range(1, len(store.seqs) + 1))


@pytest.fixture
def logs_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the streams that are read from SQLite files from now on."""
    read, streams = SqliteStore.read, []

    async def note(store: SqliteStore, stream: str, *values: Any, **named: Any) -> Slice:
        streams.append(stream)
        return await read(store, stream, *values, **named)

    monkeypatch.setattr(SqliteStore, "read", note)
    return streams


async def test_what_this_process_wrote_a_moment_ago_is_read_back_only_after_foreign_writes(
    database: Path, logs_read: list[str]
) -> None:
    """Its store notices them, and refuses the command's first commit."""
    async with opened(database) as rt:
        ids = await parked(rt)
        logs_read.clear()
        await rt.respond(ids["question"], "red", by="ana")
        assert logs_read == []
        async with opened(database) as other:
            await other.session("t", agent="shop").send("Hello")
        await rt.submit_result(ids["tool"], "done")
        assert logs_read == ["s//s"]
        assert {call.kind async for call in rt.pending()} == {"approval"}


async def test_what_this_process_began_to_write_some_time_ago_is_read_back_before_a_command(
    database: Path, logs_read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file can be damaged without a write that its store notices, however busy a session is."""
    monkeypatch.setattr(verification, "TRUST_S", 2.0)
    async with opened(database) as rt:
        ids = await parked(rt)
        await rt.respond(ids["question"], "red", by="ana")
        await anyio.sleep(1.5)
        logs_read.clear()
        await rt.deny(ids["approval"], by="ana")
        await anyio.sleep(0.6)
        assert logs_read == []
        await rt.submit_result(ids["tool"], "done")
        assert logs_read == ["s//s"]


async def test_damage_that_another_process_reports_ends_the_trust_in_a_log(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its report is newer than what was read, and makes everything be read again."""
    monkeypatch.setattr(verification, "FRESH_S", 0.0)
    async with opened(database) as rt, opened(database) as other:
        ids = await parked(rt)
        await rt.respond(ids["question"], "red", by="ana")
        set_data(database, b"{")
        with pytest.raises(Corrupt):
            await other.approve(ids["approval"], by="ana")
        with pytest.raises(Corrupt):
            await rt.submit_result(ids["tool"], "done")
