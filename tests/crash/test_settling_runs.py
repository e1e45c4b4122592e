"""Runs that settle calls in the commit that claims their session, killed at every point."""

from pathlib import Path

from tests.crash.agents import Place
from tests.crash.harness import KILLED, Forker, MakePlace, StartForker, ended, of
from tests.crash.test_kill_matrix import is_in_doubt

TURNS = "look refund deploy"


def _play(forker: Forker, place: Place, point: str, unbroken: Place) -> None:
    folder, at = place.folder, point.partition(" ")[0]
    status = forker.run(folder, "settling_story", TURNS, store=place.store, kill_at=at)
    assert status == KILLED, at
    status = forker.run(folder, "settling_story", TURNS, store=place.store)
    assert status == 0, (folder / "log").read_text()[-2000:]
    end, expected = ended(folder), ended(unbroken.folder)
    assert (end["state"], end["output"]) == (expected["state"], expected["output"])
    for call in of(end, "tool_call"):
        done = [line for line in place.effects() if line["call"] == call["id"]]
        assert len(done) == 1 or (not done and is_in_doubt(end, call["id"])), call["id"]
    assert len(of(end, "decision")) == 1
    assert len(of(end, "settled")) == len(of(expected, "settled"))
    assert len(of(end, "assistant")) == len(of(expected, "assistant"))
    is_lost = point.startswith("model:")  # the process died with the response
    assert len(place.requests()) == len(unbroken.requests()) + is_lost


def test_settling_runs_killed_anywhere_end_as_if_they_had_not_been(
    places: MakePlace, forkers: StartForker
) -> None:
    """SX.3, G1, G2, G3, G4"""
    _check_killed_anywhere(places, forkers())


def test_settling_runs_in_files_killed_anywhere_end_as_if_they_had_not_been(
    tmp_path: Path, forkers: StartForker
) -> None:
    """SX.3: the same on the store of files."""
    _check_killed_anywhere(lambda name="": Place(tmp_path / name, store="files"), forkers())


def _check_killed_anywhere(places: MakePlace, forker: Forker) -> None:
    unbroken = places("unbroken")
    status = forker.run(unbroken.folder, "settling_story", TURNS, store=unbroken.store)
    assert status == 0, (unbroken.folder / "log").read_text()
    points = [p for p in forker.points(unbroken.folder) if not p.startswith("commit:")]
    assert len([point for point in points if "decision" in point]) == 1
    wrong = []
    for number, point in enumerate(points):
        try:
            _play(forker, places(f"point-{number}"), point, unbroken)
        except AssertionError as error:
            wrong.append(f"{point}: {error}")
    assert len(points) > 15
    assert not wrong, "\n".join(wrong)
