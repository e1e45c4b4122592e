"""Ids that sort by their creation, and ids that nobody can guess."""

import time

import pytest

from perdure import host
from perdure.ids import new_id, secret_id


def test_ids_of_one_millisecond_sort_by_their_creation(monkeypatch: pytest.MonkeyPatch) -> None:
    instant = 1_800_000_000_000_000_000
    monkeypatch.setattr(host, "instant_ns", lambda: instant)
    ids = [new_id("exec") for _ in range(1_000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 1_000
    assert {len(one) for one in ids} == {len("exec_") + 26}
    # What follows an id is as hard to guess as 64 random bits.
    assert len({one[:20] for one in ids}) > 1


def test_an_id_of_a_later_millisecond_sorts_after_those_before() -> None:
    ids = []
    for _ in range(3):
        ids += [new_id("task") for _ in range(100)]
        before = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 == before:
            pass
    assert ids == sorted(ids)


def test_ids_that_cannot_be_guessed_have_nothing_in_common() -> None:
    ids = [secret_id("p") for _ in range(1_000)]
    assert len(set(ids)) == 1_000
    assert len({one[:6] for one in ids}) > 900
