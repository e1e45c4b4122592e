"""One story, killed at every point, finished by another process: SX.3.

A tool, an idempotent tool, an approval, a deferred call, two tools at once; SIGKILL right after
each durable write, inside each tool before and after its effect, and between each model answer
and its record.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from tests.crash.agents import Place
from tests.crash.harness import Forker, MakePlace, StartForker, ended, of

TURNS = "look notify refund deploy look+notify"
AT_ONCE = 3  # processes are mostly waiting for a lease to run out
ONCE = {"look", "refund", "deploy"}  # tools that are never repeated


def check_end(folder: Path, unbroken: dict[str, Any]) -> None:
    """The same end, by the same turns and calls, with a result for each."""
    end = ended(folder)
    for key in ("state", "output"):
        assert end[key] == unbroken[key], key
    for type_, names in {
        "user": ("content",),
        "assistant": ("turn", "content"),
        "tool_call": ("id", "tool", "params"),
        "decision": ("kind", "by", "callID"),
        "pending": ("kind", "callID", "tool"),
        "agent_complete": ("output",),
    }.items():
        assert [[e.get(n) for n in names] for e in of(end, type_)] == [
            [e.get(n) for n in names] for e in of(unbroken, type_)
        ], type_
    results = {e["toolCallId"]: e for e in of(end, "tool_result")}
    assert len(results) == len(of(end, "tool_result")), "a call has two results"
    for told in of(unbroken, "tool_result"):
        result = results[told["toolCallId"]]
        assert result.get("interrupted") or result["result"] == told["result"]


def check_effects(place: Place, point: str) -> None:
    """Everything was done once; in doubt that is said, and only idempotent tools are repeated."""
    end = ended(place.folder)
    for call in of(end, "tool_call"):
        done = [line for line in place.effects() if line["call"] == call["id"]]
        intents = [e for e in of(end, "tool_started") if e["id"] == call["id"]]
        assert len({e["effectID"] for e in intents}) == 1, f"{call['id']}: several effect ids"
        assert {line["effect"] for line in done} <= {e["effectID"] for e in intents}
        assert len({line["attempt"] for line in done}) == len(done) <= len(intents)
        if call["tool"] in ONCE:
            assert len(intents) == 1, f"{call['id']} was begun again"
            assert len(done) == 1 or is_in_doubt(end, call["id"]), f"{call['id']} was not done"
        else:
            assert done, f"{call['id']} was not done"
            assert not is_in_doubt(end, call["id"])
        if f":{call['id']}:" in point:
            check_killed_tool(end, call, len(done), after=point.endswith(":after"))


def check_killed_tool(end: dict[str, Any], call: dict[str, Any], done: int, *, after: bool) -> None:
    """The process died inside this tool, before or after its effect."""
    if call["tool"] in ONCE:
        assert done == after
        assert is_in_doubt(end, call["id"]), f"{call['id']} was in doubt, and nobody was told"
    else:
        assert done == 1 + after


def is_in_doubt(end: dict[str, Any], call_id: str) -> bool:
    """Whether the log says that nobody knows whether the call took effect."""
    interrupted = [e for e in of(end, "tool_result") if e.get("interrupted")]
    cut_off = [e for e in of(end, "progress") if e.get("problem") == "START_INTERRUPTED"]
    return call_id in {e["toolCallId"] for e in interrupted} | {e["callID"] for e in cut_off}


def check_requests(place: Place, point: str, unbroken: list[int]) -> None:
    """A recorded turn is never asked for again; an answer that was lost is, once."""
    lost = [int(point.split(":")[1]) - 1] if point.startswith("model:") else []
    assert sorted(place.asked()) == sorted(unbroken + lost)


def _folder(point: str) -> str:
    return point.partition(" ")[0].replace(":", "-")


def play(forker: Forker, place: Place, point: str, unbroken: Path) -> None:
    folder, store = place.folder, place.store
    forker.kill(folder, "story", TURNS, at=point.partition(" ")[0], store=store)
    status = forker.run(folder, "story", TURNS, store=store)
    assert status == 0, (folder / "log").read_text()[-2000:]
    check_end(folder, ended(unbroken))
    check_effects(place, point)
    check_requests(place, point, Place(unbroken).asked())


def test_a_story_killed_anywhere_ends_as_if_it_had_not_been(
    places: MakePlace, forkers: StartForker, capsys: pytest.CaptureFixture[str]
) -> None:
    """SX.3, S0.34, S2.42: found points, real processes, one database each."""
    check_killed_anywhere(places, forkers, capsys)


def test_a_story_in_files_killed_anywhere_ends_as_if_it_had_not_been(
    tmp_path: Path, forkers: StartForker, capsys: pytest.CaptureFixture[str]
) -> None:
    """SX.3: the same on the store of files."""
    check_killed_anywhere(lambda name: Place(tmp_path / name, store="files"), forkers, capsys)


def check_killed_anywhere(
    places: MakePlace, forkers: StartForker, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process killed at each point that an unbroken run passes, and one that goes on."""
    free: SimpleQueue[Forker] = SimpleQueue()
    for _ in range(AT_ONCE):
        free.put(forkers())
    whole = places("unbroken")
    unbroken, store = whole.folder, whole.store
    forker = free.get()
    assert forker.run(unbroken, "story", TURNS, store=store) == 0, (unbroken / "log").read_text()
    points = [p for p in forker.points(unbroken) if not p.startswith("commit:")]
    free.put(forker)
    check_effects(whole, "")

    def one(point: str) -> str | None:
        forker = free.get()
        try:
            play(forker, places(_folder(point)), point, unbroken)
        except Exception as error:  # noqa: BLE001 - told below, with all others
            return f"{point}: {type(error).__name__}: {error}"
        finally:
            free.put(forker)
        return None

    with ThreadPoolExecutor(AT_ONCE) as pool:
        wrong = [told for told in pool.map(one, points) if told is not None]
    with capsys.disabled():
        where = whole.url.partition(":")[0]
        print(f"\nkill matrix, {where}: {len(points)} points, {len(wrong)} wrong")  # noqa: T201
    assert len(points) > 30
    assert not wrong, "\n".join(wrong)
