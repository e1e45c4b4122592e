"""A long session killed before, while and after it is summarised: real processes, SIGKILL."""

from tests.crash.agents import SHORT
from tests.crash.harness import Forker, MakePlace, ended, of

TURNS = f"{SHORT}look notify look"
BY_HAND = ("commit compaction_requested", "commit agent_start+compacted")


def test_a_summary_is_asked_for_until_it_is_recorded_and_never_again(
    places: MakePlace, forker: Forker
) -> None:
    """G2"""
    asked = places("unbroken")
    unbroken = asked.folder
    assert forker.run(unbroken, "story", TURNS) == 0, (unbroken / "log").read_text()
    points = [
        point
        for point in forker.points(unbroken)
        if point.startswith("summary:") or point.endswith(" commit compacted")
    ]
    whole = ended(unbroken)
    assert asked.summaries() == [2, 3]
    assert len(points) == 4
    for point in points:
        at = point.partition(" ")[0]
        place = places(at.replace(":", "-"))
        forker.kill(place.folder, "story", TURNS, at=at)
        assert forker.run(place.folder, "story", TURNS) == 0, (place.folder / "log").read_text()
        end = ended(place.folder)
        assert (end["state"], end["output"]) == (whole["state"], whole["output"])
        for kind, names in {
            "compacted": ("upTo", "summary", "turn"),
            "assistant": ("turn",),
        }.items():
            assert [[one[n] for n in names] for one in of(end, kind)] == [
                [one[n] for n in names] for one in of(whole, kind)
            ]
        assert place.asked() == asked.asked()
        lost = [int(at.split(":")[1]) - 1] if point.startswith("summary:") else []
        assert sorted(place.summaries()) == sorted(asked.summaries() + lost)
        assert len(place.effects("look")) == 2


def test_a_summary_by_hand_is_made_by_whoever_comes_after_a_kill(
    places: MakePlace, forker: Forker
) -> None:
    """G1, G2"""
    unbroken = places("unbroken")
    assert forker.run(unbroken.folder, "compact", "look notify") == 0
    points = forker.points(unbroken.folder)
    chosen = [one for one in points if one.startswith("summary:") or one.endswith(BY_HAND)]
    assert len(chosen) == 3
    for point in chosen:
        at = point.partition(" ")[0]
        place = places(at.replace(":", "-"))
        forker.kill(place.folder, "compact", "look notify", at=at)
        assert forker.run(place.folder, "compact", "look notify") == 0
        end = ended(place.folder)
        assert (end["state"], end["output"]) == ("completed", "all done")
        assert [len(of(end, kind)) for kind in ("compaction_requested", "compacted")] == [1, 1]
        assert place.asked() == unbroken.asked()
        assert len(place.summaries()) == (2 if point.startswith("summary:") else 1)
