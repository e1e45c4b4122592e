"""A tool asks while it runs, and the process is killed at each step: real processes, SIGKILL."""

from pathlib import Path

import pytest
from tests.crash.agents import Place
from tests.crash.harness import Forker, ended, of

TURNS = "inquire"
# Right after these commits, and inside the tool after its effect.
STEPS = ("pending", "decision", "tool_started", "tool:inquire")


@pytest.fixture(params=["sqlite", "postgres", "files"])
def new_place(request: pytest.FixtureRequest, tmp_path: Path) -> "NewPlace":
    return NewPlace(tmp_path, request)


class NewPlace:
    """Factory of folders with a database of one kind."""

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        self._folder, self._request = folder, request

    def __call__(self, name: str) -> Place:
        folder = self._folder / name
        folder.mkdir()
        if self._request.param == "postgres":
            (folder / "url").write_text(self._request.getfixturevalue("new_postgres_schema")())
        return Place(folder, store="files" if self._request.param == "files" else "sqlite")


def test_a_tool_that_asks_survives_a_kill_at_each_step(new_place: NewPlace, forker: Forker) -> None:
    whole = new_place("unbroken")
    assert forker.run(whole.folder, "story", TURNS, store=whole.store) == 0
    points = [point for point in forker.points(whole.folder) if any(s in point for s in STEPS)]
    if whole.store != "sqlite" or (whole.folder / "url").exists():
        points = points[1:4]  # the complete list only once: each costs a lease
    check(whole, "")
    for number, point in enumerate(points):
        place = new_place(str(number))
        forker.kill(place.folder, "story", TURNS, at=point.partition(" ")[0], store=place.store)
        assert forker.run(place.folder, "story", TURNS, store=place.store) == 0, point
        check(place, point)


def check(place: Place, point: str) -> None:
    """Everything was asked once and done once, unless the process died while the tool ran."""
    end = ended(place.folder)
    assert end["state"] == "completed", point
    (result,) = of(end, "tool_result")
    was_running = "tool_started" in point or "tool:" in point
    assert result.get("interrupted", False) == was_running, point
    if not was_running:
        assert result["result"] == "inquire was done in blue", point
        assert len(place.effects("inquire")) == 1, point
        assert [event["kind"] for event in of(end, "pending")] == ["question", "approval"], point
        assert [event["kind"] for event in of(end, "decision")] == ["respond", "approve"], point
    assert len({event["effectID"] for event in of(end, "tool_started")}) == 1, point
