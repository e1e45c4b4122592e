"""Deliveries: which facts are told, and when an attempt is repeated."""

from itertools import pairwise
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure.core.pending.record import PendingRecord, PendingTime
from perdure.core.webhooks import deliveries
from perdure.core.webhooks.deliveries import (
    BACK_OFF_S,
    FORBIDDEN,
    LIMIT_MS,
    MAX_REFUSALS,
    MOVES,
    TYPES,
    DeliveryRecord,
    DeliveryResponse,
    DeliveryStatus,
    DeliveryStep,
    Hook,
    Occasion,
    call_occasion,
    is_warning_current,
    record_attempt,
    redeliver,
    warning_at,
    withdraw,
)
from perdure.errors import Corrupt

NOW = 1_700_000_000_000
NEW = DeliveryRecord(
    id="d_1", occasion="decided", target="h_1", session_id="s1", created_at=NOW, begun_at=NOW
)
CALL = PendingRecord(
    id="p_1",
    session_id="s1",
    agent="a",
    task_id="t",
    message_id="m1",
    part_id="m1.0",
    call_id="c1",
    effect_id="e1",
    tool="refund",
    input={},
    kind="approval",
    time=PendingTime(created=NOW),
    timeout=NOW + 1000,
)


def test_each_occasion_has_its_type() -> None:
    assert set(TYPES) == set(get_args(Occasion))


@pytest.mark.parametrize(
    "status, is_new, told",
    [
        ("waiting", True, "pending"),
        ("waiting", False, None),
        ("processing", False, None),
        ("completed", False, "decided"),
        ("failed", False, "decided"),
        ("cancelled", False, "decided"),
        ("expired", False, "expired"),
    ],
)
def test_what_a_call_is_an_occasion_for(status: str, is_new: bool, told: str | None) -> None:
    """S0.60"""
    record = replace(CALL, status=status)
    assert call_occasion(record, is_new=is_new) == told
    assert call_occasion(replace(record, kind="timer"), is_new=is_new) is None


def test_a_call_is_about_to_expire_after_a_share_of_its_time() -> None:
    assert warning_at(CALL, 0.8) == NOW + 800
    assert warning_at(replace(CALL, timeout=None), 0.8) is None
    assert warning_at(replace(CALL, status="completed"), 0.8) is None
    assert warning_at(replace(CALL, timeout=NOW - 5), 0.8) == NOW


def test_a_warning_counts_for_the_deadline_it_was_made_for() -> None:
    assert is_warning_current(CALL, NOW + 1000)
    assert not is_warning_current(replace(CALL, timeout=NOW + 9), NOW + 1000)
    assert not is_warning_current(replace(CALL, status="completed"), NOW + 1000)
    assert not is_warning_current(None, NOW + 1000)


def test_only_a_request_leads_out_of_an_end() -> None:
    ends = [step for (status, step), _ in MOVES.items() if status is not DeliveryStatus.WAITING]
    assert set(ends) == {DeliveryStep.REQUESTED}
    assert {step for (status, step) in MOVES if status is DeliveryStatus.WAITING} == set(
        DeliveryStep
    )


def story(answer: DeliveryResponse, chance: float = 0.5) -> list[DeliveryRecord]:
    """A delivery that always gets this answer, tried each time it is due."""
    told, now = [NEW], NOW
    while told[-1].status is DeliveryStatus.WAITING:
        told.append(record_attempt(told[-1], answer, now, chance))
        now = told[-1].next_at or now
    return told[1:]


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_only_success_is_success(status: int) -> None:
    (only,) = story(DeliveryResponse(status))
    assert (only.status, only.settled_at, only.last_status) == (
        DeliveryStatus.DELIVERED,
        NOW,
        status,
    )


@pytest.mark.parametrize("answer", [DeliveryResponse(410)])
def test_gone_ends_it_at_once(answer: DeliveryResponse) -> None:
    (only,) = story(answer)
    assert only.status is DeliveryStatus.DEAD


@pytest.mark.parametrize(
    "answer",
    [
        DeliveryResponse(400),
        DeliveryResponse(404),
        DeliveryResponse(302),
        DeliveryResponse(101),
        DeliveryResponse(error=FORBIDDEN),
    ],
)
def test_what_says_that_the_request_is_wrong_is_tried_a_few_times(answer: DeliveryResponse) -> None:
    told = story(answer)
    assert (len(told), told[-1].status) == (MAX_REFUSALS, DeliveryStatus.DEAD)


@pytest.mark.parametrize(
    "answer",
    [
        DeliveryResponse(500),
        DeliveryResponse(503),
        DeliveryResponse(408),
        DeliveryResponse(429),
        DeliveryResponse(error="timeout"),
    ],
)
def test_what_may_pass_is_tried_with_growing_pauses_for_a_bounded_time(
    answer: DeliveryResponse,
) -> None:
    told = story(answer)
    assert len(told) == len(BACK_OFF_S) + 1
    assert told[-1].status is DeliveryStatus.DEAD
    at = [NOW, *[one.next_at for one in told[:-1] if one.next_at is not None]]
    assert [after - before for before, after in pairwise(at)] == [s * 1000 for s in BACK_OFF_S]
    assert at[-1] <= NOW + LIMIT_MS


@given(chance=st.floats(0, 1))
def test_those_that_failed_together_are_spread(chance: float) -> None:
    one = record_attempt(NEW, DeliveryResponse(500), NOW, chance)
    assert one.next_at is not None
    assert NOW + 4000 <= one.next_at <= NOW + 6000


def test_what_the_receiver_asks_for_is_honoured_within_a_day() -> None:
    slow = record_attempt(NEW, DeliveryResponse(503, retry_after_ms=60_000), NOW, 0.5)
    assert slow.next_at == NOW + 60_000
    soon = record_attempt(NEW, DeliveryResponse(503, retry_after_ms=1), NOW, 0.5)
    assert soon.next_at == NOW + 5_000
    never = record_attempt(NEW, DeliveryResponse(503, retry_after_ms=10**12), NOW, 0.5)
    assert never.next_at == NOW + 86_400_000


def test_a_delivery_that_is_asked_for_again_begins_anew() -> None:
    dead = story(DeliveryResponse(500))[-1]
    again = redeliver(dead, NOW + 9)
    assert (again.status, again.attempts, again.next_at) == (DeliveryStatus.WAITING, 0, NOW + 9)
    assert again.begun_at == NOW + 9
    assert again.id == dead.id
    assert again.settled_at is None
    assert (
        record_attempt(again, DeliveryResponse(200), NOW + 9, 0).status is DeliveryStatus.DELIVERED
    )


def test_a_withdrawn_delivery_says_why() -> None:
    gone = withdraw(NEW, "it is settled", NOW)
    assert (gone.status, gone.last_error) == (DeliveryStatus.WITHDRAWN, "it is settled")


def test_what_is_stored_reads_back_and_damage_is_told_without_the_secret() -> None:
    assert deliveries.decode(deliveries.encode(NEW)) == NEW
    hook = Hook("https://x.example", "s3cret")
    assert deliveries.decode_hook(deliveries.encode(hook)) == hook
    with pytest.raises(Corrupt):
        deliveries.decode(b"{}")
    with pytest.raises(Corrupt) as caught:
        deliveries.decode_hook(msgspec.json.encode({"url": 1, "secret": "s3cret"}))
    assert "s3cret" not in str(caught.value)
