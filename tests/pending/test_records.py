"""`PendingToolCall`: the records by the verbs of their first description."""

from typing import Any

import pytest

from perdure import Conflict, NotFound, Refused, Runtime
from perdure.pending import PendingToolCall, SessionResumer
from perdure.runtime.webhooks.deliveries import Deliveries
from perdure.testing import ManualClock

DAY = 86_400_000


@pytest.fixture
def calls(rt: Runtime) -> PendingToolCall:
    return PendingToolCall(rt)


async def first(calls: PendingToolCall) -> dict[str, Any]:
    found = await calls.list_by_session("s")
    return min(found, key=lambda one: str(one["partID"]))


async def test_a_record_has_every_documented_field(
    calls: PendingToolCall, clock: ManualClock
) -> None:
    """S0.1"""
    one = await first(calls)
    assert one == await calls.get(one["id"])
    assert {key: one[key] for key in ("sessionID", "messageID", "tool", "input", "status")} == {
        "sessionID": "s",
        "messageID": "m1",
        "tool": "deploy",
        "input": {"branch": "a"},
        "status": "waiting",
    }
    assert one["externalRef"] == "dep-a"
    assert one["timeout"] == clock.now() + DAY
    assert one["time"] == {"created": clock.now()}
    assert (one["result"], one["error"], one["webhookURL"]) == (None, None, None)


async def test_they_are_listed_by_session_and_status(calls: PendingToolCall) -> None:
    """S0.44"""
    one, other = await calls.list()
    assert await calls.by_session("s") == await calls.list()
    await calls.complete(one["id"], "up")
    assert [call["id"] for call in await calls.list_by_status("completed")] == [one["id"]]
    assert [call["id"] for call in await calls.list_by_status("waiting")] == [other["id"]]
    assert len(await calls.list()) == 2
    assert await calls.get("p_none") is None
    with pytest.raises(NotFound):
        await calls.list_by_session("none")


async def test_a_result_is_kept_and_told_once(calls: PendingToolCall, clock: ManualClock) -> None:
    """S0.7, S0.33, S0.36"""
    one = await first(calls)
    clock.advance("5s")
    result = {"title": "Up", "output": "https://x", "metadata": {"n": 1}}
    done = await calls.complete(one["id"], result)
    assert (done["status"], done["result"]) == ("completed", result)
    assert done["time"]["completed"] == clock.now()
    assert await calls.complete(one["id"], result) == done
    with pytest.raises(Conflict, match="Not waiting"):
        await calls.complete(one["id"], "other")


@pytest.mark.parametrize(
    "result,why",
    [
        ({"output": "x", "titel": "y", "more": 1}, "unknown keys in result: more, titel"),
        ({"title": "x"}, "a result is text"),
        (["x"], "a result is text"),
        ({"output": object()}, "output is not JSON"),
    ],
)
async def test_a_result_that_is_none_is_refused(
    calls: PendingToolCall, result: Any, why: str
) -> None:
    """S0.7"""
    one = await first(calls)
    with pytest.raises(Refused, match=why):
        await calls.complete(one["id"], result)
    assert (await first(calls))["status"] == "waiting"


async def test_calls_fail_and_are_cancelled(calls: PendingToolCall) -> None:
    """S0.37, S0.40"""
    one, other = await calls.list()
    failed = await calls.fail(one["id"], "no disk")
    assert (failed["status"], failed["error"]) == ("failed", "no disk")
    cancelled = await calls.cancel(other["id"], by="ana")
    assert (cancelled["status"], cancelled["error"]) == ("cancelled", "Cancelled by user")
    with pytest.raises(Conflict):
        await calls.cancel(other["id"])


async def test_what_is_overdue_is_found_and_expired(
    calls: PendingToolCall, clock: ManualClock
) -> None:
    """S0.62, S0.63"""
    one, other = await calls.list()
    with pytest.raises(Conflict, match="is not past its deadline"):
        await calls.expire(one["id"])
    assert await calls.find_expired() == []
    clock.advance("25h")
    found = await calls.find_expired()
    assert sorted(call["id"] for call in found) == sorted([one["id"], other["id"]])
    expired = await calls.expire(one["id"])
    assert (expired["status"], expired["error"]) == ("expired", "Tool execution timed out")
    assert await calls.expire(one["id"]) == expired


async def test_a_call_started_elsewhere_can_be_recorded(
    calls: PendingToolCall, rt: Runtime, clock: ManualClock
) -> None:
    """S0.4, S0.39"""
    made = await calls.create(
        session_id="s", tool="ship", input={"n": 1}, external_ref="x-1", timeout="1h"
    )
    assert made == await calls.get(made["id"])
    assert made["id"].startswith("p_")
    assert (made["externalRef"], made["timeout"]) == ("x-1", clock.now() + 3_600_000)
    done = await calls.complete(made["id"], "shipped")
    assert done["result"]["output"] == "shipped"
    for call in await calls.list_by_status("waiting"):
        await calls.complete(call["id"], "up")
    ended = await rt.session("s").run()
    assert (ended.state, ended.output) == ("completed", "Both are up.")


async def test_a_session_waits_for_no_call_that_its_model_did_not_request(
    calls: PendingToolCall, rt: Runtime
) -> None:
    """S0.44: the waiting status and the session say the same."""
    resumer = SessionResumer(rt)
    before = await resumer.get_waiting_status("s")
    made = await calls.create(session_id="s", tool="ship", input={})
    assert await resumer.get_waiting_status("s") == before
    for call in await calls.list_by_status("waiting"):
        if call["id"] != made["id"]:
            await calls.complete(call["id"], "up")
    assert (await rt.session("s").run()).state == "completed"
    assert await resumer.get_waiting_status("s") == {"waiting": False}
    assert [call["id"] for call in await calls.list_by_status("waiting")] == [made["id"]]


async def test_a_call_of_the_model_that_the_session_does_not_have_is_refused(
    calls: PendingToolCall, rt: Runtime
) -> None:
    """S0.39: a caller that names a call expects the session to wait for it."""
    before = await rt.session("s").events()
    with pytest.raises(Refused) as caught:
        await calls.create(session_id="s", tool="ship", input={}, call_id="call-none")
    assert caught.value.code == "CALL_NOT_OPEN"
    assert "leave out call_id" in (caught.value.hint or "")
    waiting = await calls.list_by_status("waiting")
    for call in waiting:
        await calls.complete(call["id"], "up")
    assert (await rt.session("s").run()).state == "completed"
    with pytest.raises(Refused, match="has no open call"):
        await calls.create(session_id="s", tool="ship", input={}, call_id=waiting[0]["callID"])
    assert len(await calls.list()) == len(waiting)
    assert len(await rt.session("s").events()) > len(before)


async def test_a_recorded_call_needs_its_session_and_an_id_of_its_own(
    calls: PendingToolCall,
) -> None:
    """S0.8, S0.39"""
    with pytest.raises(NotFound):
        await calls.create(session_id="none", tool="ship", input={})
    for wrong in (object(), [1], {"x": object()}):
        with pytest.raises(Refused, match="not a JSON object"):
            await calls.create(session_id="s", tool="ship", input=wrong)  # type: ignore[arg-type]
    made = await calls.create(session_id="s", id="job-1", tool="ship", input={}, timeout=None)
    assert (made["id"], made["timeout"]) == ("job-1", None)
    with pytest.raises(Conflict) as caught:
        await calls.create(session_id="s", id="job-1", tool="ship", input={})
    assert caught.value.code == "ID_TAKEN"


async def test_a_tenant_sees_its_own(calls: PendingToolCall, rt: Runtime) -> None:
    one = await first(calls)
    elsewhere = PendingToolCall(rt.tenant("acme"))
    assert await elsewhere.get(one["id"]) is None
    assert await elsewhere.list() == []
    with pytest.raises(NotFound):
        await elsewhere.complete(one["id"], "x")


async def test_each_call_may_have_somebody_of_its_own_to_tell(
    calls: PendingToolCall, rt: Runtime
) -> None:
    """S0.59 S0.60"""
    url = "https://x.example/T0ken"
    one = await calls.create(
        session_id="s",
        tool="build",
        input={},
        timeout=None,
        notify_url=url,
        notify_secret="a",  # noqa: S106
    )
    other = await calls.create(session_id="s", tool="build", input={}, notify_secret="b")  # noqa: S106
    await calls.complete(one["id"], "up")
    resources = rt._resources
    assert await resources.own_secrets(one["id"]) == ["a"]
    assert await resources.own_secrets(other["id"]) == ["b"]
    found = [made async for made in Deliveries(resources.outbox).all(None)]
    assert sorted(made.occasion for made in found) == ["decided", "pending"]
    assert "T0ken" not in str(await calls.list())
    with pytest.raises(Refused, match="not a public address"):
        await calls.create(session_id="s", tool="x", input={}, notify_url="http://127.0.0.1/")
