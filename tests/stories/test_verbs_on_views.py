"""Verbs on the calls and tasks that a runtime or a client returns, and views without them."""

import copy
import pickle
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from tests.support.http_shop import TOKENS, agent, parked

from perdure import Agent, Conflict, PendingCall, Principal, Refused, Result, Runtime, asgi, views
from perdure.client import Client
from perdure.store.memory import MemoryStore
from perdure.testing import ScriptedModel
from perdure.views.base import View

Owner = Runtime | Client


@dataclass(frozen=True)
class Answer:
    """The output type of an agent."""

    city: str


@pytest.fixture
async def rt() -> AsyncIterator[Runtime]:
    async with Runtime(MemoryStore(), agents=[agent()]) as opened:
        yield opened


@pytest.fixture(params=["runtime", "client"])
async def owner(rt: Runtime, request: pytest.FixtureRequest) -> AsyncIterator[Owner]:
    """A runtime, or a client of its server; both act as one person."""
    if request.param == "runtime":
        yield rt.acting_as(Principal("admin", "admin"), via="slack")
        return
    transport = httpx2.ASGITransport(app=asgi(rt, auth=TOKENS))
    async with Client("http://perdure", "admin-token", transport=transport) as client:
        yield client


async def open_calls(owner: Owner) -> dict[str, PendingCall]:
    """Return the open calls of the parked session by kind."""
    return {call.kind: call async for call in owner.session("s").pending()}


def copies(view: View) -> list[View]:
    replaced = views.replace(view)
    pickled = pickle.loads(pickle.dumps(view))  # noqa: S301 - our own
    return [copy.copy(view), copy.deepcopy(view), replaced, pickled]


async def test_each_call_has_the_verbs_that_settle_it(rt: Runtime, owner: Owner) -> None:
    await parked(rt)
    calls = await open_calls(owner)
    approved = await calls["approval"].approve(args={"cents": 5}, note="ok")
    assert approved.decision is not None
    assert (approved.decision.kind, approved.decision.by) == ("edit", "admin")
    assert (await calls["question"].respond("red")).status == "completed"
    submitted = await calls["tool"].submit_result("deployed", title="Deploy")
    assert submitted.result is not None
    assert (submitted.result.title, submitted.result.output) == ("Deploy", "deployed")
    assert await open_calls(owner) == {}


async def test_a_call_can_be_denied_failed_or_cancelled(rt: Runtime, owner: Owner) -> None:
    await parked(rt)
    calls = await open_calls(owner)
    denied = await calls["approval"].deny(reason="too much")
    assert denied.decision is not None
    assert (denied.decision.kind, denied.decision.reason) == ("deny", "too much")
    assert (await calls["tool"].submit_error("no disk")).error == "no disk"
    assert (await calls["question"].cancel()).status == "cancelled"


async def test_what_a_verb_returns_has_verbs_too(rt: Runtime, owner: Owner) -> None:
    await parked(rt)
    approved = await (await open_calls(owner))["approval"].approve()
    assert (await approved.approve()).duplicate
    with pytest.raises(Conflict):
        await approved.deny()


async def test_calls_of_snapshots_and_lists_have_verbs(rt: Runtime, owner: Owner) -> None:
    ids = await parked(rt)
    (snapshot,) = [session async for session in owner.sessions()]
    state = await owner.session("s").state()
    shown = [
        *snapshot.pending,
        *state.pending,
        *(await owner.session("s").get()).pending,
        *[call async for call in owner.pending()],
        await owner.pending_call(ids["tool"]),
    ]
    assert len(shown) == 13
    assert [await call.approve() for call in shown if call.id == ids["approval"]]


async def test_a_call_is_taken_wherever_an_id_is(rt: Runtime, owner: Owner) -> None:
    await parked(rt)
    calls = await open_calls(owner)
    (edited,) = await owner.decide({calls["approval"]: {"decision": "edit", "args": {"cents": 1}}})
    assert edited.decision is not None
    assert edited.decision.args == {"cents": 1}
    await owner.respond(calls["question"], "red")
    assert (await owner.cancel_call(calls["tool"])).status == "cancelled"


async def test_a_background_task_has_verbs(rt: Runtime, owner: Owner) -> None:
    task = await owner.spawn("shop", "Go")
    assert (await task.get()).status == "running"
    assert not (await task.output()).has_ended
    (listed,) = [one async for one in owner.background_tasks()]
    assert (await listed.cancel(reason="enough")).status == "cancelled"
    assert (await (await owner.background_task(task.id)).delete()).task_id == task.id


VERBS: dict[str, Callable[[PendingCall], object]] = {
    "approve": lambda call: call.approve(),
    "deny": lambda call: call.deny(),
    "respond": lambda call: call.respond("x"),
    "submit_result": lambda call: call.submit_result("x"),
    "submit_error": lambda call: call.submit_error("x"),
    "cancel_call": lambda call: call.cancel(),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_a_copy_of_a_call_has_no_verbs_and_says_what_to_type(
    rt: Runtime, owner: Owner, verb: str
) -> None:
    ids = await parked(rt)
    call = await owner.pending_call(ids["approval"])
    assert "_owner" not in call.to_json()
    for other in copies(call):
        assert other == call
        assert isinstance(other, PendingCall)
        with pytest.raises(Refused) as error:
            await VERBS[verb](other)  # type: ignore[misc]
        assert error.value.code == "NOT_BOUND"
        assert f"await rt.{verb}({call.id!r}" in (error.value.hint or "")
    assert (await rt.pending_call(call.id)).is_open


async def test_a_copy_of_a_task_has_no_verbs_and_says_what_to_type(
    rt: Runtime, owner: Owner
) -> None:
    task = await owner.spawn("shop", "Go")
    for other in copies(task):
        assert other == task
        assert isinstance(other, type(task))
        for verb in (other.get, other.output, other.cancel, other.delete):
            with pytest.raises(Refused) as error:
                await verb()
            assert error.value.code == "NOT_BOUND"
            assert f"await rt.background_task({task.id!r})" in (error.value.hint or "")
        with pytest.raises(Refused, match="has no verbs here"):
            await other.resume("More")


async def test_a_varied_snapshot_keeps_its_typed_output() -> None:
    model = ScriptedModel([{"output": {"city": "Bern"}}])
    result = await Agent("geo", model=model, output_type=Answer).run("Where?")
    assert result.output == Answer("Bern")
    assert views.replace(result, title="Places").output == Answer("Bern")
    assert copy.copy(result).unwrap() == Answer("Bern")
    varied: Result[Any] = views.replace(result, output_json={"city": "Rome"})
    assert varied.output == {"city": "Rome"}


async def test_a_decision_by_nobody_says_how_to_name_the_person(rt: Runtime) -> None:
    ids = await parked(rt)
    call = await rt.pending_call(ids["approval"])
    for decision in (call.approve(), call.deny(), call.respond("x")):
        with pytest.raises(Refused) as error:
            await decision
        assert error.value.code == "BY_NEEDED"
        assert "acting_as" in (error.value.hint or "")
    ana = rt.acting_as(Principal("ana", "approver"), via="slack")
    decided = await (await ana.pending_call(call.id)).approve()
    assert decided.decision is not None
    assert (decided.decision.by, decided.decision.via) == ("ana", "slack")
