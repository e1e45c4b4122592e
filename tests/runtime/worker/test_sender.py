"""Deliveries are sent, signed, tried again and given up; with a clock that only the test moves."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from tests.runtime.webhooks.test_outbox import OPS, SHOP, made, outbox_of, start
from tests.support.shop import agent, paused

from perdure import NotFound, Runtime, host
from perdure.core.webhooks.deliveries import (
    BACK_OFF_S,
    MAX_REFUSALS,
    DeliveryRecord,
    DeliveryResponse,
    DeliveryStatus,
)
from perdure.core.webhooks.signatures import verify
from perdure.runtime.records.retention import Retention
from perdure.runtime.webhooks.callbacks import PublicAddress
from perdure.runtime.webhooks.deliveries import Deliveries
from perdure.runtime.webhooks.outbox import Receiver
from perdure.runtime.worker.sender import DeliverySender
from perdure.store.base import Lease
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock

MakeRuntime = Callable[..., Runtime]
ENDS = Receiver(OPS.url, "hush", frozenset({"completed"}))


@dataclass
class Wire:
    """What was sent, and what is answered to it: 200 unless the test says otherwise."""

    rt: Runtime
    clock: ManualClock
    answers: list[DeliveryResponse] = field(default_factory=list)
    sent: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    async def send(
        self, url: str, headers: dict[str, str], body: bytes, now: int
    ) -> DeliveryResponse:
        self.sent.append((url, headers, body))
        return self.answers.pop(0) if self.answers else DeliveryResponse(200)

    async def round(self) -> int:
        """Whatever is due goes out."""
        service = self.rt._service
        courier = DeliverySender(self.rt._resources.outbox, service.drives, self)
        begun = await courier.start_due()
        while courier.active:
            await anyio.lowlevel.checkpoint()
        return begun

    async def until_settled(self) -> DeliveryRecord:
        """The one delivery, tried each time that it is due."""
        while True:
            await self.round()
            (one,) = await made(self.rt)
            if one.next_at is None:
                return one
            self.clock.advance((one.next_at - self.clock.now()) / 1000)

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for _, headers, _ in self.sent]


@pytest.fixture(autouse=True)
def _pauses_are_not_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "chance", lambda: 0.5)


def wired(rt: Runtime, clock: ManualClock, *targets: Receiver) -> Wire:
    outbox_of(rt, *targets).is_configured = True
    return Wire(rt, clock)


async def completed(rt: Runtime) -> None:
    waiting = await paused(rt, SHOP)
    await rt.approve(waiting.pending[0].id, by="ana")
    await rt.session("s").run()


async def test_a_delivery_is_sent_once_signed_both_ways(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S0.60"""
    async with runtime(SHOP) as rt:
        wire = wired(rt, clock, ENDS)
        await completed(rt)
        assert await wire.round() == 1
        assert await wire.round() == 0
        ((url, headers, body),) = wire.sent
        assert url == OPS.url
        plain = {"X-Webhook-Signature": headers["X-Webhook-Signature"]}
        assert verify(plain, body, ["hush"], clock.now()).ok
        assert verify(headers, body, ["hush"], clock.now()).message_id == headers["webhook-id"]
        (one,) = await made(rt)
        assert (one.status, one.attempts, one.id) == (
            DeliveryStatus.DELIVERED,
            1,
            headers["webhook-id"],
        )
        assert msgspec.json.decode(body)["id"] == one.id


async def test_a_target_without_a_secret_is_signed_for_with_a_derived_one(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    """S0.60"""
    async with in_memory(SHOP, webhook_secret="server") as rt:  # noqa: S106
        wire = wired(rt, clock, Receiver(OPS.url, on=ENDS.on))
        await completed(rt)
        await wire.round()
        ((_, headers, body),) = wire.sent
        secret = PublicAddress(None, "server").notify_secret or ""
        assert verify(headers, body, [secret], clock.now()).ok
        assert not verify(headers, body, ["server"], clock.now()).ok


async def test_what_fails_is_sent_again_later_under_the_same_id_until_it_is_given_up(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S0.60"""
    async with runtime(SHOP) as rt:
        wire = wired(rt, clock, ENDS)
        wire.answers = [
            DeliveryResponse(503),
            DeliveryResponse(error="it could not be reached"),
        ] * 20
        await completed(rt)
        begun = clock.now()
        dead = await wire.until_settled()
        assert dead.status is DeliveryStatus.DEAD
        assert len(wire.sent) == len(BACK_OFF_S) + 1
        assert set(wire.ids) == {dead.id}
        assert clock.now() - begun == sum(BACK_OFF_S) * 1000
        stamps = {headers["webhook-timestamp"] for _, headers, _ in wire.sent}
        assert len(stamps) == len(wire.sent)  # signed anew: a retry is not stale
        assert len({body for _, _, body in wire.sent}) == 1


@pytest.mark.parametrize(
    "answers, attempts, status",
    [
        ([DeliveryResponse(410)], 1, "dead"),
        ([DeliveryResponse(404)] * 9, MAX_REFUSALS, "dead"),
        ([DeliveryResponse(301)] * 9, MAX_REFUSALS, "dead"),
        ([DeliveryResponse(500), DeliveryResponse(404), DeliveryResponse(202)], 3, "delivered"),
    ],
)
async def test_a_receiver_that_wants_it_not_or_later_is_obeyed(
    in_memory: MakeRuntime,
    clock: ManualClock,
    answers: list[DeliveryResponse],
    attempts: int,
    status: str,
) -> None:
    """S0.60"""
    async with in_memory(SHOP) as rt:
        wire = wired(rt, clock, ENDS)
        wire.answers = list(answers)
        await completed(rt)
        one = await wire.until_settled()
        assert (one.status, one.attempts, len(wire.sent)) == (status, attempts, attempts)


async def test_it_is_not_sent_before_the_time_that_the_receiver_asks_for(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    """S0.60"""
    async with in_memory(SHOP) as rt:
        wire = wired(rt, clock, ENDS)
        wire.answers = [DeliveryResponse(429, retry_after_ms=600_000)]
        await completed(rt)
        await wire.round()
        clock.advance(599)
        assert await wire.round() == 0
        clock.advance(1)
        assert await wire.round() == 1
        assert (await made(rt))[0].status is DeliveryStatus.DELIVERED


async def expiring(rt: Runtime, wire: Wire) -> list[str]:
    await wire.round()
    bodies = [msgspec.json.decode(body) for _, _, body in wire.sent]
    return [one["data"]["id"] for one in bodies if one["type"] == "pending.expiring"]


async def test_the_warning_goes_out_at_its_time_and_only_if_the_call_still_waits(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S0.60"""
    one = agent({"calls": [{"tool": "start"}]}, {"text": "Done."}, tools=[start])
    async with runtime(one) as rt:
        wire = wired(rt, clock, Receiver(OPS.url, on=frozenset({"expiring"})))
        waits = await paused(rt, one)
        settled = await paused(rt, one, "other")
        await rt.submit_result(settled.pending[0].id, "up")
        clock.advance(79)
        assert await expiring(rt, wire) == []
        clock.advance(1)
        assert await expiring(rt, wire) == [waits.pending[0].id]
        assert sorted(str(o.status) for o in await made(rt)) == ["delivered", "withdrawn"]


async def test_a_delivery_whose_session_was_deleted_is_withdrawn(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S0.60"""
    async with runtime(SHOP) as rt:
        wire = wired(rt, clock)
        await rt.session("s", agent=SHOP, notify_url="https://a.example/").run("Go")
        await rt.session("s").delete()
        await wire.round()
        assert wire.sent == []
        withdrawn = ("withdrawn", "the receiver was removed")
        # The pending call, and the cancellation of the run that the deletion ended.
        assert [(o.status, o.last_error) for o in await made(rt)] == [withdrawn] * 2


async def test_a_process_without_the_server_s_list_makes_its_deliveries_and_leaves_them(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S0.60: `perdure approve --store …` is told too."""
    async with runtime(SHOP) as rt:
        wired(rt, clock, ENDS, OPS)
        await rt._resources.outbox.publish_targets()
        await rt._resources.outbox.publish_targets()
        waiting = await paused(rt, SHOP)
    async with runtime(SHOP) as other:
        assert [t.name for t in other._resources.outbox.targets] == [ENDS.name, OPS.name]
        assert "ops.example" not in repr(other._resources.outbox)
        await other.deny(waiting.pending[0].id, by="ana")
        stranger = Wire(other, clock)
        assert await stranger.round() == 0
    async with runtime(SHOP) as rt:
        wire = wired(rt, clock, ENDS, OPS)
        await wire.round()
        types = [msgspec.json.decode(body)["type"] for _, _, body in wire.sent]
        assert sorted(types) == ["pending.created", "pending.decided"]


async def test_a_target_that_is_in_the_list_no_more_is_not_told(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    async with in_memory(SHOP) as rt:
        wire = wired(rt, clock, ENDS)
        await completed(rt)
        rt._resources.outbox.targets = ()
        await wire.round()
        assert (wire.sent, (await made(rt))[0].status) == ([], "withdrawn")


async def test_a_delivery_can_be_asked_for_again_and_keeps_its_id(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S0.60"""
    async with runtime(SHOP) as rt:
        wire = wired(rt, clock, ENDS)
        wire.answers = [DeliveryResponse(410)]
        await completed(rt)
        dead = await wire.until_settled()
        door = Deliveries(rt._resources.outbox)
        again = await door.redeliver(dead.id, by="ops")
        assert again.status is DeliveryStatus.WAITING
        assert await wire.round() == 1
        assert wire.ids == [dead.id, dead.id]
        shown = await door.details(dead.id)
        assert shown.status == "delivered"
        assert [(one["step"], one.get("status")) for one in shown.log] == [
            *(("given_up", 410), ("requested", None), ("accepted", 200)),
        ]
        assert shown.log[1]["by"] == "ops"
        assert shown.target == "https://ops.example/…"
        with pytest.raises(NotFound):
            await door.redeliver("d_nope")
        with pytest.raises(NotFound):
            await door.details(dead.id, "other-tenant")


async def test_asked_for_again_while_it_is_on_its_way_it_is_sent_again(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    async with in_memory(SHOP) as rt:
        wire = wired(rt, clock, ENDS)
        await completed(rt)
        (one,) = await made(rt)
        door = Deliveries(rt._resources.outbox)

        class Meddling(Wire):
            async def send(self, url: str, headers: Any, body: bytes, now: int) -> DeliveryResponse:
                await door.redeliver(one.id)
                return DeliveryResponse(500)

        await Meddling(rt, clock).round()
        (after,) = await made(rt)
        assert (after.status, after.attempts) == (DeliveryStatus.WAITING, 1)
        clock.advance(10)
        await wire.round()
        assert wire.ids == [one.id]


async def test_a_courier_that_stumbles_gives_the_delivery_back(
    in_memory: MakeRuntime, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_memory(SHOP) as rt:
        wire = wired(rt, clock, ENDS)
        await completed(rt)

        class Broken(Wire):
            async def send(self, url: str, headers: Any, body: bytes, now: int) -> DeliveryResponse:
                raise ZeroDivisionError

        await Broken(rt, clock).round()
        assert "could not be sent" in caplog.text
        clock.advance(31)
        await wire.round()
        assert (await made(rt))[0].status is DeliveryStatus.DELIVERED


async def test_no_log_line_shows_a_secret_or_an_address(
    in_memory: MakeRuntime, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """G11"""
    caplog.set_level("DEBUG")
    async with in_memory(SHOP) as rt:
        wire = wired(rt, clock, Receiver("https://ops.example/T0ken", "hush-hush", ENDS.on))
        wire.answers = [DeliveryResponse(500), DeliveryResponse(410)]
        await completed(rt)
        await wire.until_settled()
        door = Deliveries(rt._resources.outbox)
        shown = [await door.details(one.id) for one in await made(rt)]
    for secret in ("T0ken", "hush-hush", "v1,", "sha256="):
        assert secret not in caplog.text
        assert secret not in str(shown)
        assert secret not in repr(rt._resources.outbox)


async def test_settled_deliveries_are_forgotten_with_settled_calls_and_waiting_ones_are_not(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S0.71"""
    async with runtime(SHOP) as rt:
        wire = wired(rt, clock, ENDS)
        await completed(rt)
        await wire.round()
        (sent,) = await made(rt)
        await paused(rt, SHOP, "waits")
        late = Receiver(OPS.url, "hush", frozenset({"decided"}))
        wired(rt, clock, late)
        await rt.session("waits").cancel()
        sweep = Retention(rt._resources.store)
        clock.advance("6d 23h")
        await sweep.run_round()
        assert {one.id for one in await made(rt)} > {sent.id}
        clock.advance("2h")
        await sweep.run_round()
        assert [one.occasion for one in await made(rt)] == ["decided"]
        with pytest.raises(NotFound):
            await Deliveries(rt._resources.outbox).details(sent.id)


async def test_a_courier_who_leaves_while_a_claim_is_answered_leaves_no_delivery_held(
    memory: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelling does not withdraw the claim, and our heartbeat would keep it for ever."""
    claimed, may_answer, claim = anyio.Event(), anyio.Event(), memory.claim

    async def slow(holder: str, kind: str, limit: int, **options: Any) -> list[Lease]:
        leases = await claim(holder, kind, limit, **options)
        if leases and not claimed.is_set():
            claimed.set()
            await may_answer.wait()
        return leases

    async with Runtime(memory, agents=[SHOP]) as rt:
        wire = wired(rt, clock, ENDS)
        await completed(rt)
        monkeypatch.setattr(memory, "claim", slow)
        task = asyncio.ensure_future(wire.round())
        await claimed.wait()
        task.cancel()
        await asyncio.wait([task])
        may_answer.set()
        await anyio.wait_all_tasks_blocked()
        await wire.round()
        assert len(wire.sent) == 1
