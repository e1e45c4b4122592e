"""Progress reports: the newest counts, and one that is sent again changes nothing."""

from typing import Any

import pytest

from perdure.core.pending.progress import MAX_KEYS, ProgressReport, with_progress
from perdure.core.pending.record import PendingRecord, PendingTime, decode, encode

RECORD = PendingRecord(
    id="p_1",
    session_id="s",
    agent="a",
    task_id="t",
    message_id="m1",
    part_id="m1.0",
    call_id="c",
    effect_id="e",
    tool="deploy",
    input={},
    kind="tool",
    time=PendingTime(created=1),
)


def after(*reports: dict[str, Any]) -> PendingRecord:
    record = RECORD
    for report in reports:
        record = decode(encode(with_progress(record, ProgressReport(**report), 5)))
    return record


def is_ignored(record: PendingRecord, **report: Any) -> bool:
    return with_progress(record, ProgressReport(**report), 6) is record


def test_a_report_with_a_lower_or_equal_sequence_changes_nothing() -> None:
    """S0.58"""
    record = after({"percent": 40, "sequence": 1}, {"percent": 80, "sequence": 2})
    assert record.progress == {"percent": 80, "message": None, "at": 5}
    assert is_ignored(record, percent=40, sequence=1)
    assert is_ignored(record, percent=90, sequence=2)
    assert not is_ignored(record, percent=10, message="again", sequence=3)


@pytest.mark.parametrize("extra", [{}, {"id": "r1"}])
def test_a_report_without_a_sequence_counts_once(extra: dict[str, Any]) -> None:
    """S0.58"""
    first, second = {"percent": 40, **extra}, {"percent": 80}
    record = after(first, second)
    assert is_ignored(record, **first)
    assert is_ignored(record, **second)
    assert not is_ignored(record, percent=40, id="another")


def test_when_there_are_too_many_reports_to_remember_only_a_higher_percent_counts() -> None:
    reports = [{"percent": n / 10, "message": str(n)} for n in range(MAX_KEYS + 5)]
    record = after(*reports)
    assert len(record.progress_keys) == MAX_KEYS
    assert is_ignored(record, **reports[0])
    assert not is_ignored(record, percent=99)
