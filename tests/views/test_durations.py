"""Durations: what people may write, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import Refused
from perdure.views.durations import MAX_MS, duration_ms, format_ms


@pytest.mark.parametrize(
    "written, ms",
    [
        (90, 90_000),
        (0.5, 500),
        (0, 0),
        ("90", 90_000),
        ("90s", 90_000),
        ("1.5h", 5_400_000),
        ("24h", 86_400_000),
        ("7d", 604_800_000),
        ("1w", 604_800_000),
        ("500ms", 500),
        ("1h30m", 5_400_000),
        (" 1H 30 m ", 5_400_000),
    ],
    ids=repr,
)
def test_seconds_and_text_are_durations(written: str | float, ms: int) -> None:
    assert duration_ms(written) == ms


@pytest.mark.parametrize(
    "written",
    [
        *("", "soon", "-5s", "1h30", "5y", "1,5h", "s", "1e3", "٣s", "9" * 400),
        *(-1, -0.001, float("nan"), float("inf"), 10**400, True, None),
    ],
    ids=lambda written: repr(written)[:20],
)
def test_what_is_not_a_duration_is_refused_in_one_line(written: str | float) -> None:
    with pytest.raises(Refused, match=r"(?m)is not a duration$") as caught:
        duration_ms(written)
    assert caught.value.code == "DURATION_INVALID"
    assert len(str(caught.value)) < 80


def test_a_very_short_duration_does_not_become_none_at_all() -> None:
    assert duration_ms("0.1ms") == 1


@given(st.integers(min_value=0, max_value=MAX_MS))
def test_a_shown_duration_reads_back_as_itself(ms: int) -> None:
    assert duration_ms(format_ms(ms)) == ms


def test_a_duration_is_shown_as_people_write_it() -> None:
    assert [format_ms(ms) for ms in (0, 90_000, 5_400_000, 604_800_000)] == [
        *("0s", "1m30s", "1h30m", "7d"),
    ]
