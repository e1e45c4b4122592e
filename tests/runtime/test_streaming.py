"""What a reader is shown of pieces that come late, twice, out of order, or not at all."""

from hypothesis import given
from hypothesis import strategies as st

from perdure.runtime.streaming import ASKED_AGAIN, CHUNKS_LOST, Attempt, DeltaChunk, DeltaReader

WORDS = ["I ", "look ", "into ", "the ", "order."]
WHOLE = "".join(WORDS)


def pieces(*words: str, turn: int = 1, attempt: Attempt = (1, 1)) -> list[DeltaChunk]:
    made, at = [], 0
    for word in words or WORDS:
        made.append(DeltaChunk(turn, attempt, at, "text", word))
        at += len(word)
    return made


def shown(hearing: DeltaReader, *came: DeltaChunk) -> list[tuple[str, str]]:
    return [(one.kind, one.text) for piece in came for one in hearing.read(piece)]


def said(found: list[tuple[str, str]]) -> str:
    """The text that a reader has who forgets it at a reset."""
    text = ""
    for kind, more in found:
        text = "" if kind == "reset" else text + more
    return text


def test_pieces_are_shown_as_they_come() -> None:
    assert shown(DeltaReader("s"), *pieces()) == [("text", word) for word in WORDS]


def test_a_hole_takes_back_what_was_shown_and_then_the_event_is_waited_for() -> None:
    first, second, _, *rest = pieces()
    assert shown(DeltaReader("s"), first, second, *rest) == [
        ("text", first.text),
        ("text", second.text),
        ("reset", CHUNKS_LOST),
    ]


def test_who_comes_late_is_shown_nothing_unless_it_is_told_from_the_beginning() -> None:
    hearing, (_, *late) = DeltaReader("s"), pieces()
    assert shown(hearing, *late) == []
    assert shown(hearing, DeltaChunk(1, (1, 1), 0, "text", WHOLE)) == [("text", WHOLE)]


def test_what_is_told_twice_or_in_larger_parts_is_shown_once() -> None:
    first, second, *rest = pieces()
    both = DeltaChunk(1, (1, 1), 0, "text", first.text + second.text)
    assert said(shown(DeltaReader("s"), first, both, first, both, *rest)) == WHOLE


def test_a_repeated_request_is_announced_by_a_reset() -> None:
    found = shown(DeltaReader("s"), *pieces("I ", "lo"), *pieces(attempt=(1, 2)))
    assert ("reset", ASKED_AGAIN) in found
    assert said(found) == WHOLE


def test_a_repeated_request_of_which_nothing_was_shown_needs_no_reset() -> None:
    _, *late = pieces()
    assert shown(DeltaReader("s"), *late, *pieces(attempt=(2, 1))) == [("text", w) for w in WORDS]


def test_a_driver_that_was_replaced_is_not_listened_to() -> None:
    old, new = pieces("I ", "was ", "frozen."), pieces(attempt=(2, 1))
    found = shown(DeltaReader("s"), old[0], new[0], old[1], new[1], old[2], *new[2:])
    assert said(found) == WHOLE


def test_after_its_event_a_turn_is_over() -> None:
    hearing, (first, *rest) = DeltaReader("s"), pieces()
    assert shown(hearing, first)
    hearing.mark_recorded(1)
    assert shown(hearing, *rest) == []
    assert said(shown(hearing, *pieces(turn=2))) == WHOLE


def test_the_progress_of_a_tool_is_always_shown() -> None:
    hearing = DeltaReader("s")
    hearing.mark_recorded(1)
    assert shown(hearing, DeltaChunk(1, (0, 0), -1, "progress", "half")) == [("progress", "half")]


@given(st.data())
def test_whatever_is_lost_doubled_or_repeated_no_garbage_is_left(data: st.DataObject) -> None:
    whole = {(1, 1): "The first one says this.", (1, 2): "Another attempt.", (3, 1): "The last."}
    came = []
    for attempt, text in whole.items():
        for _ in range(data.draw(st.integers(0, 6))):
            at = data.draw(st.integers(0, len(text) - 1))
            end = data.draw(st.integers(at + 1, len(text)))
            came.append(DeltaChunk(1, attempt, at, "text", text[at:end]))
    if data.draw(st.booleans()):
        came = data.draw(st.permutations(came))
    text = said(shown(DeltaReader("s"), *came))
    assert any(one.startswith(text) for one in whole.values())
