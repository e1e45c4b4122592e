"""Events in a storage that can only append: which of them are in force."""

from typing import Any

from perdure.core.transfer.stored_log import StoredMark, in_force, marked, read_stored


def own(text: str, seq: int, last: int, base: int = 0) -> dict[str, Any]:
    return marked("user", 1, f'{{"content":"{text}"}}'.encode(), StoredMark(seq, last, base))


def foreign(text: str) -> dict[str, Any]:
    return {"type": "user", "timestamp": 1, "data": {"content": text}}


def texts(events: list[Any]) -> list[str]:
    return [event["data"]["content"] for event in events]


def test_a_repeated_event_replaces_the_first_and_all_after_it() -> None:
    """S2.23"""
    log = [own("a", 1, 1), own("b", 2, 4), own("c", 3, 4), own("b2", 2, 3), own("c2", 3, 3)]
    assert texts(in_force(log)) == ["a", "b2", "c2"]
    assert read_stored(log).head == 3


def test_an_incomplete_commit_does_not_count() -> None:
    """S2.23, S2.42"""
    log = [own("a", 1, 1), own("b", 2, 4), foreign("x"), own("c", 3, 4)]
    assert texts(in_force(log)) == ["a", "x"]
    assert read_stored(log).head == 1


def test_a_session_that_began_again_keeps_what_was_before() -> None:
    log = [foreign("x"), own("a", 2, 2, 1), own("c", 4, 5, 1), own("d", 5, 6, 3), own("e", 6, 6, 3)]
    stored = read_stored(log)
    assert texts(in_force(log)) == ["x", "a", "d", "e"]
    assert texts(stored.prefix) == ["x", "a"]
    assert [event.mark.seq for event in stored.own] == [5, 6]
    assert stored.is_complete


def test_a_missing_event_is_noticed() -> None:
    assert not read_stored([own("a", 1, 1), own("c", 3, 3)]).is_complete


def test_marks_of_other_programs_are_left_alone() -> None:
    log = [{**foreign("x"), "perdure": mark} for mark in (None, 5, {}, {"seq": 1, "pos": 3})]
    assert in_force(log) == log
    assert read_stored(log).own == []
    assert in_force([None, 3, "x"]) == [None, 3, "x"]
