"""Compressed data of records."""

import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.store.sqlite.packed_data import MIN_BYTES, pack, unpack

WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "for",
    "it",
    "as",
    "was",
    "with",
    "be",
    "by",
    "on",
    "not",
    "he",
    "his",
    "but",
    "at",
    "are",
    "this",
]


def event(luck: random.Random, words: int) -> bytes:
    text = " ".join(luck.choices(WORDS, k=words))
    return json.dumps({"role": "assistant", "content": text, "agent": "a", "turn": 3}).encode()


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary() | st.binary(min_size=MIN_BYTES, max_size=4 * MIN_BYTES))
def test_any_bytes_come_back(data: bytes) -> None:
    assert unpack(pack(data)) == data


@pytest.mark.parametrize("words", [1, 100, 1_000, 10_000])
def test_events_come_back_and_long_ones_are_smaller(words: int) -> None:
    data = event(random.Random(words), words)  # noqa: S311 - chance, not a secret
    assert unpack(pack(data)) == data
    assert len(data) < MIN_BYTES or len(pack(data)) < 0.6 * len(data)


def test_short_data_is_stored_as_it_is() -> None:
    assert pack(b'{"a":1}') == b'{"a":1}'


def test_content_that_appears_twice_in_a_record_is_stored_once() -> None:
    luck = random.Random(1)  # noqa: S311
    text = "".join(luck.choices("abcdefghijklmnopqrstuvwxyz     ", k=12_000))
    once = len(pack(json.dumps({"content": text}).encode()))
    twice = len(pack(json.dumps({"content": text, "native": [{"text": text}]}).encode()))
    assert twice < 1.05 * once


@pytest.mark.parametrize("cut", [1, 10, 50])
def test_damaged_compressed_data_is_an_error(cut: int) -> None:
    stored = pack(event(random.Random(2), 200))  # noqa: S311
    with pytest.raises(ValueError, match="compressed data"):
        unpack(stored[:-cut])


def test_data_longer_than_a_limit_is_left_out() -> None:
    data = event(random.Random(3), 1_000)  # noqa: S311
    assert unpack(pack(data), len(data)) == data
    assert unpack(pack(data), len(data) - 1) is None
    assert unpack(pack(data), 100) is None
