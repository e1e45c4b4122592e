"""One story, killed at every point, finished by another process: SX.3.

A tool, an idempotent tool, an approval, a background agent that the parent waits for, a deferred
call, two tools at once; SIGKILL right after each durable write, inside each tool before and after
its effect, and between each model answer and its record.
"""

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from tests.crash.agents import Place
from tests.crash.harness import KILLED, Forker, MakePlace, StartForker, ended, of
from tests.crash.program import SESSION

from perdure.core.session.children import BACKGROUND_AUTHOR

TURNS = "look notify refund delegate collect deploy look+notify"
COLLECT = 4  # the turn that is requested while the background agent works
AT_ONCE = 3  # processes are mostly waiting for a lease to run out
ONCE = {"look", "refund", "deploy"}  # tools that are never repeated
BACKGROUND = {"background_task", "background_output"}
VARIABLE = re.compile(r'bg_\w+|"status":"\w+"')  # no two plays share the ids of tasks


def check_end(folder: Path, unbroken: dict[str, Any]) -> None:
    """The same end, by the same turns and calls, with a result for each."""
    end = ended(folder)
    for key in ("state", "output"):
        assert end[key] == unbroken[key], key
    for type_, names in {
        "delegation_complete": ("status", "number"),
        "user": ("content",),
        "assistant": ("turn", "content"),
        "tool_call": ("id", "tool", "params"),
        "decision": ("kind", "by", "callID"),
        "pending": ("kind", "callID", "tool"),
        "agent_complete": ("output",),
    }.items():
        assert [[e.get(n) for n in names] for e in lasting(end, type_)] == [
            [e.get(n) for n in names] for e in lasting(unbroken, type_)
        ], type_
    results = {e["toolCallId"]: e for e in of(end, "tool_result")}
    assert len(results) == len(of(end, "tool_result")), "a call has two results"
    for told in of(unbroken, "tool_result"):
        result = results[told["toolCallId"]]
        assert result.get("interrupted") or masked(result) == masked(told)
    mail = [
        item
        for kind in ("user", "tool_result")
        for e in of(end, kind)
        for item in e.get("mail", ())
    ]
    assert len(mail) == len(of(end, "delegation")) == 1, "the background agent was told of twice"


def lasting(end: dict[str, Any], type_: str) -> list[dict[str, Any]]:
    """Return the events of a type, without those that a late or early background agent adds."""
    events = [e for e in of(end, type_) if e.get("by") != BACKGROUND_AUTHOR]
    return [e for e in events if e.get("kind") != "child"]


def masked(result: dict[str, Any]) -> str:
    """Return the text of a result without ids; a launch that is repeated may find its task done."""
    return VARIABLE.sub("", result["result"])


def check_effects(place: Place, point: str) -> None:
    """Everything was done once; in doubt that is said, and only idempotent tools are repeated."""
    end = ended(place.folder)
    for call in of(end, "tool_call"):
        done = [line for line in place.effects() if line["call"] == call["id"]]
        intents = [e for e in of(end, "tool_started") if e["id"] == call["id"]]
        if call["tool"] in BACKGROUND:
            continue
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
    by_child = [line for line in place.effects() if line["call"] == "child_look"]
    assert len(by_child) == 1 or (not by_child and point), "the tool of the background agent"


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


def check_requests(place: Place, point: str, unbroken: Place) -> None:
    """A recorded turn is never asked for again; an answer that was lost is, once."""
    lost = Counter({(True, int(point.split(":")[1]) - 1): 1} if point.startswith("model:") else {})
    extra = requests_by_turn(place)
    extra.subtract(requests_by_turn(unbroken) + lost)
    # The parent and its background agent are driven at once: the kill of one is that of the other.
    wrong = {
        turn: count for turn, count in extra.items() if count and turn[0] and turn[1] != COLLECT
    }
    assert not wrong
    assert set(extra.values()) <= {0, 1}


def requests_by_turn(place: Place) -> Counter[tuple[bool, int]]:
    """Return how often each turn was requested, of the parent or of its background agent."""
    return Counter((line["session"] == SESSION, line["turn"]) for line in place.requests())


def _folder(point: str) -> str:
    return point.partition(" ")[0].replace(":", "-")


def play(forker: Forker, place: Place, point: str, unbroken: Path) -> None:
    folder, store = place.folder, place.store
    at = point.partition(" ")[0]
    status = forker.run(folder, "story", TURNS, store=store, kill_at=at)
    # Two drives share commits at will: the last of the numbered writes may not be reached.
    assert status == KILLED or (status == 0 and at.startswith("write:")), at
    status = forker.run(folder, "story", TURNS, store=store)
    assert status == 0, (folder / "log").read_text()[-2000:]
    check_end(folder, ended(unbroken))
    check_effects(place, point)
    check_requests(place, point, Place(unbroken))


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
