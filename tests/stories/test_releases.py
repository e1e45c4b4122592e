"""Data of earlier versions, continued by this one: databases, a files store and an export.

The last commit before the project was renamed wrote `tests/data/releases/0.1.0`; only the key of
the project in its lines of JSON was renamed. `scripts/release/fixture.py` wrote the others. In each
store, `approval` waits for an approver, `deferred` for a result, `finished` has completed, and the
process was killed inside the tool of `interrupted`. The later ones have more states, background
agents, a task and deliveries too.
"""

import shutil
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from scripts.release.agents import charged
from scripts.release.fixture import SCHEMA, open_runtime
from tests.support.paths import DATA

from perdure import Runtime
from perdure.app import store_of
from perdure.core.pending.record import PendingRecord
from perdure.runtime.records.listings import SESSIONS, listed_page
from perdure.runtime.sessions.pending_pages import PendingFilter, pending_page
from perdure.store.base import Store
from perdure.store.files.convert import convert
from perdure.store.files.store import mirror_of
from perdure.tasks import LockManager, MultiLayerPersistence, TaskRegistry
from perdure.testing import ManualClock
from perdure.views.literals import PendingSort

FIRST, LATER = DATA / "releases" / "0.1.0", DATA / "releases" / "0.2.0.dev0"
AN_HOUR_LATER = datetime(2026, 11, 16, 16, 6, tzinfo=UTC)


async def _database(release: Path, folder: Path, _: Any) -> str:
    for name in ("perdure.db", "perdure.db-wal"):
        if (release / name).exists():
            shutil.copy(release / name, folder)
    return f"sqlite:///{folder}/perdure.db"


async def _files(release: Path, folder: Path, _: Any) -> str:
    shutil.copytree(release / "files", folder / "files")
    assert (await convert(folder / "files")).damaged == ()
    return f"files://{folder}/files"


async def _import(_: Path, folder: Path, __: Any) -> str:
    return f"sqlite:///{folder}/imported.db"


async def _postgres(release: Path, __: Path, request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("new_postgres_schema")()
    address, _, schema = url.partition("?schema=")
    dump = (release / "postgres.sql").read_text("utf-8").replace(SCHEMA, schema)
    connection = await asyncpg.connect(address)
    await connection.execute(dump)
    await connection.close()
    return url


EVERY = {"database": _database, "files": _files, "export": _import, "postgres": _postgres}
CASES = [
    pytest.param((release, name), id=f"{name} of {release.name}")
    for release, names in ((FIRST, list(EVERY)[:3]), (LATER, list(EVERY)))
    for name in names
]
LATER_CASES = CASES[3:]
STORES = [case for case in LATER_CASES if "export" not in str(case.id)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(AN_HOUR_LATER)


@pytest.fixture(params=CASES)
async def rt(
    request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path
) -> AsyncIterator[Runtime]:
    release, name = request.param
    open_at: Callable[..., Any] = EVERY[name]
    if release == LATER:
        shutil.copytree(LATER / "tasks", tmp_path / "tasks")
    url = await open_at(release, tmp_path, request)
    async with open_runtime(url, tmp_path / "tasks", clock) as runtime:
        if open_at is _import:
            await runtime.import_sessions((release / "export.jsonl").read_text().splitlines())
        yield runtime


async def test_a_call_that_waited_in_an_older_release_is_approved_and_its_session_continues(
    rt: Runtime,
) -> None:
    session = rt.session("approval", agent="refunds")
    (call,) = (await session.get()).pending
    await rt.approve(call.id, by="ana")
    result = await session.run()
    assert (result.state, result.output) == ("completed", "Refunded.")
    results = [event.data for event in await session.events() if event.type == "tool_result"]
    assert results[-1]["result"] == "refunded 4200 cents of order 991"
    assert (await session.run("Thank you")).output == "You are welcome."


async def test_a_message_key_of_an_older_release_is_still_known(rt: Runtime) -> None:
    session = rt.session("approval", agent="refunds")
    before = await session.events()
    assert (await session.run("Refund order 991", key="first")).state == "waiting"
    assert await session.events() == before


async def test_a_result_for_a_deferred_call_of_an_older_release_is_taken(rt: Runtime) -> None:
    session = rt.session("deferred", agent="deliveries")
    (call,) = (await session.get()).pending
    await rt.submit_result(call.id, "it was delivered on Monday")
    result = await session.run()
    assert (result.state, result.output) == ("completed", "Delivered.")


async def test_a_call_that_an_older_release_was_killed_in_is_reported_and_not_repeated(
    rt: Runtime,
) -> None:
    charged.clear()
    session = rt.session("interrupted", agent="charges")
    result = await session.run()
    assert (result.state, result.output, charged) == ("completed", "Checked the charge.", [])
    (reported,) = [event.data for event in await session.events() if event.type == "tool_result"]
    assert reported["interrupted"]


async def test_a_session_that_an_older_release_completed_takes_another_message(rt: Runtime) -> None:
    session = rt.session("finished", agent="refunds")
    assert (await session.get()).output == "Refunded."
    assert (await session.run("Thank you")).output == "You are welcome."


@pytest.mark.parametrize("rt", LATER_CASES, indirect=True)
async def test_a_call_with_one_vote_of_an_older_version_needs_one_more(rt: Runtime) -> None:
    session = rt.session("voted", agent="payouts")
    (call,) = (await session.get()).pending
    await rt.approve(call.id, by="ana")  # again: it counts once
    assert (await session.run()).state == "waiting"
    await rt.approve(call.id, by="ben")
    assert (await session.run()).output == "Paid out."


@pytest.mark.parametrize("rt", LATER_CASES, indirect=True)
async def test_a_run_at_a_limit_in_an_older_version_continues_with_a_new_one(rt: Runtime) -> None:
    session = rt.session("budget", agent="thrifty")
    (question,) = (await session.get()).pending
    await rt.respond(question.id, {"turns": 5}, by="ana")
    assert (await session.run()).output == "Looked it up."


@pytest.mark.parametrize("rt", LATER_CASES, indirect=True)
async def test_sessions_in_every_other_state_continue_as_in_the_older_version(
    rt: Runtime, clock: ManualClock
) -> None:
    assert (await rt.session("timer").get()).state == "waiting"
    clock.advance("1h")
    assert (await rt.session("timer").run()).output == "Waited."
    assert (await rt.session("queued").get()).state == "pending"
    assert (await rt.session("queued").run()).state == "waiting"
    assert (await rt.session("failed").get()).state == "failed"
    assert (await rt.session("cancelled").get()).state == "cancelled"


@pytest.mark.parametrize("rt", STORES, indirect=True)
async def test_results_of_background_agents_of_an_older_version_reach_their_parents_once(
    rt: Runtime,
) -> None:
    store = store_of(rt)
    (mail,) = (await store.find("mail", state="open")).entries
    assert (await rt.session("lead").run()).state == "completed"
    taken = await store.get("mail", mail.key)
    assert taken is None or taken.state != "open"
    (task,) = [
        item
        async for item in rt.background_tasks(parent="waiting-lead")
        if (await rt.session(item.session_id).get()).pending
    ]
    (question,) = (await rt.session(task.session_id).get()).pending
    await rt.respond(question.id, "That one", by="ana")
    assert (await rt.session(task.session_id).run()).output == "That one."
    before = len(await rt.session("waiting-lead").events())
    assert (await rt.session("waiting-lead").run()).state == "completed"
    assert len(await rt.session("waiting-lead").events()) > before
    assert (await store.find("mail", state="open")).entries == ()


@pytest.mark.parametrize("rt", STORES, indirect=True)
async def test_a_task_of_an_older_version_has_its_lock_its_state_and_its_log(rt: Runtime) -> None:
    task = await TaskRegistry(rt).get_by_id("data")
    assert task is not None
    assert task.status == "running"
    layers = MultiLayerPersistence(rt)
    assert "read" in [entry.message for entry in await layers.load_logs("data")]
    lock = await LockManager(rt).acquire_lock_with_retry("task:data", "agent-2")
    assert lock.version == 2  # after the one of the process that was killed


@pytest.mark.parametrize("rt", [STORES[0]], indirect=True)
async def test_a_task_of_an_older_version_goes_back_to_its_checkpoint(
    rt: Runtime, tmp_path: Path
) -> None:
    layers, rows = MultiLayerPersistence(rt), tmp_path / "tasks" / "data" / "workspace" / "rows.csv"
    (checkpoint,) = await layers.list_checkpoints("data")
    rows.write_text("changed")
    await layers.restore_checkpoint("data", checkpoint.id)
    assert rows.read_text() == "1,2\n"


@pytest.mark.parametrize("rt", STORES, indirect=True)
async def test_a_delivery_of_an_older_version_is_still_to_be_sent(rt: Runtime) -> None:
    deliveries = (await store_of(rt).find("delivery")).entries
    assert {entry.state for entry in deliveries} == {"waiting"}
    streams = await store_of(rt).streams()
    due = {state.stream for state in streams if state.due is not None}
    assert {entry.stream for entry in deliveries} <= due


async def test_its_calls_and_sessions_are_listed_in_order(rt: Runtime) -> None:
    """Also those of a program that did not know listings yet."""
    store = store_of(rt)
    sorts: tuple[PendingSort, ...] = ("age", "expires")
    for sort in sorts:
        calls, following = await pending_page(store, PendingFilter(), None, 100, sort)
        assert {call.session_id for call in calls} >= {"approval", "deferred"}
        assert following is None
    if mirror_of(store) is None:  # the journal of the first does not say when they were put
        ages = [call.time.created for call in await _pending(store, "age")]
        assert ages == sorted(ages)
    sessions = await listed_page(store, "session", [SESSIONS], "newest", None, 100)
    assert {e.key for e in sessions.entries} >= {"/approval", "/deferred", "/finished"}


async def _pending(store: Store, sort: PendingSort) -> list[PendingRecord]:
    return (await pending_page(store, PendingFilter(), None, 100, sort))[0]
