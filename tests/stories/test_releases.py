"""Data of an earlier release, continued by this one: a database, a files store and an export.

The last commit before the project was renamed wrote `tests/data/releases/0.1.0`. In each of the
three, `approval` waits for an approver, `deferred` for a result, `finished` has completed, and the
process was killed inside the tool of `interrupted`. Only the key of the project in lines of JSON
was renamed.
"""

import shutil
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.support.paths import DATA

from perdure import Agent, PendingCall, Runtime, tool
from perdure.core.pending.record import PendingRecord
from perdure.runtime.records.listings import SESSIONS, listed_page
from perdure.runtime.sessions.pending_pages import PendingFilter, PendingSort, pending_page
from perdure.store.base import Store
from perdure.store.files.store import FilesStore
from perdure.testing import ManualClock

RELEASE = DATA / "releases" / "0.1.0"
AN_HOUR_LATER = datetime(2026, 11, 16, 16, 6, tzinfo=UTC)

charged: list[int] = []


@tool
def lookup_order(order_id: int) -> dict[str, int]:
    """Look up an order."""
    return {"order": order_id, "cents": 4200}


@tool(requires_approval=True)
def refund(order_id: int, cents: int) -> str:
    """Refund an order."""
    return f"refunded {cents} cents of order {order_id}"


@tool(deferred=True)
def check_delivery(order_id: int, call: PendingCall) -> str:
    """Ask the warehouse, which replies later."""
    return f"warehouse-{order_id}"


@tool
def charge(order_id: int) -> str:
    """Charge the customer."""
    charged.append(order_id)
    return "charged"


def agents() -> list[Agent[str]]:
    return [
        Agent("refunds", model=f"scripted:{RELEASE}/refund.json", tools=[lookup_order, refund]),
        Agent("deliveries", model=f"scripted:{RELEASE}/delivery.json", tools=[check_delivery]),
        Agent("charges", model=f"scripted:{RELEASE}/charge.json", tools=[charge]),
    ]


def _database(folder: Path) -> str:
    for name in ("perdure.db", "perdure.db-wal"):
        shutil.copy(RELEASE / name, folder)
    return f"sqlite:///{folder}/perdure.db"


def _files(folder: Path) -> str:
    shutil.copytree(RELEASE / "files", folder / "files")
    return f"files://{folder}/files"


def _import(folder: Path) -> str:
    return f"sqlite:///{folder}/imported.db"


@pytest.fixture(params=[_database, _files, _import], ids=["database", "files", "export"])
async def rt(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    open_at: Callable[[Path], str] = request.param
    clock = ManualClock(AN_HOUR_LATER)
    async with Runtime(open_at(tmp_path), agents=agents(), clock=clock) as runtime:
        if open_at is _import:
            await runtime.import_sessions((RELEASE / "export.jsonl").read_text().splitlines())
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


async def test_its_calls_and_sessions_are_listed_in_order(rt: Runtime) -> None:
    """Also those of a program that did not know listings yet."""
    store = rt._resources.store
    sorts: tuple[PendingSort, ...] = ("age", "expires")
    for sort in sorts:
        calls, following = await pending_page(store, PendingFilter(), None, 10, sort)
        assert {call.session_id for call in calls} >= {"approval", "deferred"}
        assert following is None
    if not isinstance(store, FilesStore):  # whose old journal does not say when they were put
        ages = [call.time.created for call in await _pending(store, "age")]
        assert ages == sorted(ages)
    sessions = await listed_page(store, "session", [SESSIONS], "newest", None, 10)
    assert {e.key for e in sessions.entries} >= {"/approval", "/deferred", "/finished"}


async def _pending(store: Store, sort: PendingSort) -> list[PendingRecord]:
    return (await pending_page(store, PendingFilter(), None, 10, sort))[0]
