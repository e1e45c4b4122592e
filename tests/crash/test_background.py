"""Background agents, killed after every durable write, finished by another process.

The parent, its child, the approver, and the callers that cancel or delete are processes of their
own, and none of them knows the agents of the others. One play of a story kills one process of each
kind, at one point each, and starts it again; after the last one, a process finishes the story.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import pytest
from tests.crash.agents import Place
from tests.crash.harness import Forker, MakePlace, ended

AT_ONCE = 4  # processes are mostly waiting for a lease to run out


class BackgroundForker(Forker):
    """Process that does the jobs of a story in forks."""

    program = "tests.crash.background_program"


@pytest.fixture(scope="session")
def crew() -> Iterator[SimpleQueue[Forker]]:
    """Forkers that are free."""
    started: list[Forker] = [BackgroundForker() for _ in range(AT_ONCE)]
    free: SimpleQueue[Forker] = SimpleQueue()
    for forker in started:
        free.put(forker)
    yield free
    for forker in started:
        forker.end()


class Story(NamedTuple):
    """Jobs in their order, those of them that are killed, and the one that finishes."""

    name: str
    jobs: tuple[str, ...]
    killed: tuple[int, ...]
    finish: str = "finish"


ANSWERED = ("start", "researcher", "settle", "researcher", "lead", "researcher", "lead")
DEEP = ("start", "middle", "researcher", "settle", "researcher", "middle", "lead")
QUEUED = ("start", "researcher", "queue", "settle", "researcher", "lead")
FOLLOWED_UP = ("start", "researcher", "settle", "researcher", "lead", "ask")
ENDED = ("start", "researcher")
STORIES = {
    "answered": Story("answered", ANSWERED, tuple(range(len(ANSWERED)))),
    "three levels": Story("deep", DEEP, tuple(range(len(DEEP)))),
    "followed up": Story("followed up", FOLLOWED_UP, (5,), "finish_later"),
    "queued": Story("queued", QUEUED, (2, 4, 5)),
    "cancelled": Story("ended", (*ENDED, "cancel", "lead"), (2, 3), "finish_cancelled"),
    "deleted": Story("ended", (*ENDED, "delete"), (2,), "finish_deleted"),
}


class Kill(NamedTuple):
    """A job of a story, and the point in it at which its process is killed."""

    job: int
    point: str


class Matrix:
    """A story that was played without a kill, and its points."""

    def __init__(self, story: Story, places: MakePlace, crew: SimpleQueue[Forker]) -> None:
        self.story = story
        self._places = places
        self._crew = crew
        self.whole = places("unbroken")
        self.kills: list[Kill] = []
        forker = crew.get()
        try:
            for number, job in enumerate(story.jobs):
                self._run(forker, self.whole.folder, job)
                if number in story.killed:
                    points = forker.points(self.whole.folder)
                    self.kills += [Kill(number, p) for p in points if self._is_kill_point(p)]
            self._run(forker, self.whole.folder, story.finish)
        finally:
            crew.put(forker)

    def _run(self, forker: Forker, folder: Path, job: str) -> None:
        status = forker.run(folder, job, self.story.name)
        assert status == 0, (folder / "log").read_text()[-2000:]

    def _is_kill_point(self, point: str) -> bool:
        """A commit or, in one kind of store, a claim; joining and leaving concern no session."""
        is_sqlite = self.whole.url.startswith("sqlite:")
        return " commit " in point or (is_sqlite and point.endswith(" claim"))

    def chains(self) -> list[list[Kill]]:
        """Return the kills of each play: at most one per job, in the order of the jobs.

        The jobs that are killed at most decide how many plays there are.
        """
        by_job: dict[int, list[Kill]] = {}
        for kill in self.kills:
            by_job.setdefault(kill.job, []).append(kill)
        return [
            [kill for kill in kills if kill is not None]
            for kills in zip_longest(*(by_job[job] for job in sorted(by_job)))
        ]

    def play(self, chain: Sequence[Kill]) -> Place:
        """Play the story with these kills and, in another process, to its end; return where."""
        points = {kill.job: kill.point.partition(" ")[0] for kill in chain}
        place = self._places("-".join(f"{job}.{p}".replace(":", "") for job, p in points.items()))
        forker, before = self._crew.get(), list[str]()
        try:
            for number, job in enumerate(self.story.jobs[: chain[-1].job + 1]):
                if number in points:
                    at = points[number]
                    forker.kill(place.folder, job, self.story.name, at=at, before=before)
                    before = []
                if number != chain[-1].job:
                    before.append(job)  # also after a kill: another process continues its work
            self._run(forker, place.folder, self.story.finish)
        finally:
            self._crew.put(forker)
        return place

    def check(self, check: Callable[[Place, Place], None]) -> list[str]:
        """Play all kills; return what was wrong."""

        def one(chain: Sequence[Kill]) -> str | None:
            try:
                check(self.play(chain), self.whole)
            except Exception as error:  # noqa: BLE001 - told with all others
                kills = [f"{k.job} {self.story.jobs[k.job]} {k.point}" for k in chain]
                return f"{', '.join(kills)}: {type(error).__name__}: {error}"
            return None

        with ThreadPoolExecutor(AT_ONCE) as pool:
            return [told for told in pool.map(one, self.chains()) if told is not None]


def check_story(place: Place, whole: Place) -> None:
    """The same end; no effect and no turn twice; each outcome once; entries as the logs."""
    end = ended(place.folder)
    assert summary(end) == summary(ended(whole.folder))
    check_entries(end)
    check_deliveries(end)
    check_effects(place, end)
    asked = requests_by_turn(place)
    assert set(asked.values()) == {1}, asked
    assert len(asked) == len(whole.requests())


def summary(end: dict[str, Any]) -> list[Any]:
    """Return what every play of a story has in common, whatever the ids are."""
    sessions = []
    for session in end["sessions"].values():
        said = [e["content"] for e in of(session, "assistant")]
        told = [e["content"] for e in of(session, "user")]
        results = [
            "interrupted" if e.get("interrupted") else e["result"]
            for e in of(session, "tool_result")
        ]
        # A tool that was cut off says so instead of its result; background tools never are.
        results = [text for text in results if "background" in text or "task_id" in text]
        sessions.append([session["agent"], session["state"], said, told, results])
    return sorted(re.sub(r"bg_\w+", "bg", repr(item)) for item in sessions)


def of(session: dict[str, Any], type_: str) -> list[dict[str, Any]]:
    return [event for event in session["events"] if event["type"] == type_]


def check_entries(end: dict[str, Any]) -> None:
    """The entries of tasks and mail say what the logs say."""
    ends = {"completed": "completed", "failed": "error", "cancelled": "cancelled"}
    for task in end["tasks"]:
        assert task["entry"] == task["log"], task
        assert task["entry"][0] == task["state"]
        assert ends[end["sessions"][task["session"]]["state"]] == task["state"]
    is_open = {key.removeprefix("/") for key, state in end["mail"].items() if state == "open"}
    assert is_open == {mail for s in end["sessions"].values() for mail in s["mail"]}


def check_deliveries(end: dict[str, Any]) -> None:
    """Each run of a child ended once, and its outcome was delivered once."""
    for session in end["sessions"].values():
        ends = [e for e in of(session, "delegation_complete") if not e.get("quiet")]
        sent = [f"{e['taskID']}.{e.get('number', 1)}" for e in ends]
        kinds = ("user", "tool_result", "mail_taken")
        taken = [mail for kind in kinds for e in of(session, kind) for mail in e.get("mail", ())]
        assert sorted(sent) == sorted(set(taken)) == sorted(taken)


def check_effects(place: Place, end: dict[str, Any]) -> None:
    """Each call took effect at most once; not at all only if the model was told so."""
    done = Counter(line["effect"] for line in place.effects())
    assert set(done.values()) <= {1}
    for session in end["sessions"].values():
        effects = {e["id"]: e["effectID"] for e in of(session, "tool_started")}
        for result in of(session, "tool_result"):
            call = result["toolCallId"]
            if call.startswith(("look", "refund")) and session["state"] == "completed":
                assert done[effects[call]] == 1 or result.get("interrupted"), call


def check_queued(place: Place, whole: Place) -> None:
    """The message is in the history once, after the first answer; both answers were delivered."""
    end = ended(place.folder)
    check_entries(end)
    check_deliveries(end)
    check_effects(place, end)
    (task,) = end["tasks"]
    child = end["sessions"][task["session"]]
    assert [event["content"] for event in of(child, "user")] == ["Tides?", "And moons?"]
    assert task["entry"][2:4] == [2, 1]  # runs, resumes
    assert task["state"] == child["state"] == "completed"
    delivered = [mail for e in of(end["sessions"]["parent"], "user") for mail in e.get("mail", ())]
    assert delivered == [f"{task['id']}.1", f"{task['id']}.2"]
    asked = requests_by_turn(place)
    assert {turns for (session, _), turns in asked.items() if session != "parent"} == {1}


def check_taken_or_told(place: Place, _: Place) -> None:
    """Either the caller took the answer to its follow-up, or the parent was notified of it."""
    end = ended(place.folder)
    check_entries(end)
    check_deliveries(end)
    check_effects(place, end)
    (task,) = end["tasks"]
    parent = end["sessions"]["parent"]
    told = [mail for e in of(parent, "user") for mail in e.get("mail", ())]
    taken = [mail for e in of(parent, "mail_taken") for mail in e["mail"]]
    assert [*told, *taken] == [f"{task['id']}.1", f"{task['id']}.2"]
    assert set(requests_by_turn(place).values()) == {1}


def requests_by_turn(place: Place) -> Counter[tuple[str, int]]:
    """Return how often each turn of each session was requested."""
    return Counter((line["session"], line["turn"]) for line in place.requests())


def check_cancelled(place: Place, whole: Place) -> None:
    """The parent and its children are cancelled, nobody is notified, nothing was done."""
    end = ended(place.folder)
    check_entries(end)
    check_deliveries(end)
    check_effects(place, end)
    assert [session["state"] for session in end["sessions"].values()] == ["cancelled"] * 3
    assert [task["state"] for task in end["tasks"]] == ["cancelled"] * 2
    assert end["mail"] == {}
    assert [line["turn"] for line in place.requests()] == [
        line["turn"] for line in whole.requests()
    ]


def check_deleted(place: Place, whole: Place) -> None:
    """No session and no entry is left, and no model was asked meanwhile."""
    assert ended(place.folder) == {"sessions": [], "entries": []}
    assert len(place.requests()) == len(whole.requests())


def play_all(
    matrix: Matrix, check: Callable[[Place, Place], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Play every kill of a story, and report all that went wrong."""
    check(matrix.whole, matrix.whole)
    wrong = matrix.check(check)
    with capsys.disabled():
        where, name = matrix.whole.url.partition(":")[0], matrix.story.name
        print(f"\n{name}, {where}: {len(matrix.kills)} kills, {len(wrong)} wrong")  # noqa: T201
    assert matrix.kills
    assert not wrong, "\n".join(wrong)


def test_a_delegation_killed_anywhere_ends_as_if_it_had_not_been(
    places: MakePlace, crew: SimpleQueue[Forker], capsys: pytest.CaptureFixture[str]
) -> None:
    """S1.13, S1.23, S1.24, S1.33, S1.34, S1.42, SX.2, SX.3

    Launched, running, waiting for approval, done and not delivered, delivered, resumed, answered.
    """
    play_all(Matrix(STORIES["answered"], places, crew), check_story, capsys)


def test_three_levels_killed_between_all_steps_end_as_if_they_had_not_been(
    tmp_path: Path, crew: SimpleQueue[Forker], capsys: pytest.CaptureFixture[str]
) -> None:
    """S1.34, S1.42, S4.36: an approval at the bottom; each level is a process of its own."""
    matrix = Matrix(STORIES["three levels"], lambda name: Place(tmp_path / name), crew)
    play_all(matrix, check_story, capsys)


def test_the_answer_for_a_caller_that_was_killed_reaches_the_parent_once(
    tmp_path: Path, crew: SimpleQueue[Forker], capsys: pytest.CaptureFixture[str]
) -> None:
    """S1.20: killed at every write while it waits, before and after it took the answer."""
    matrix = Matrix(STORIES["followed up"], lambda name: Place(tmp_path / name), crew)
    play_all(matrix, check_taken_or_told, capsys)


def test_a_queued_message_killed_anywhere_starts_one_run_and_is_answered_once(
    places: MakePlace, crew: SimpleQueue[Forker], capsys: pytest.CaptureFixture[str]
) -> None:
    """S1.44, S1.23: the caller, the child between its two runs, and the parent are killed."""
    play_all(Matrix(STORIES["queued"], places, crew), check_queued, capsys)


def test_a_cancelled_parent_killed_anywhere_leaves_no_child_running(
    places: MakePlace, crew: SimpleQueue[Forker], capsys: pytest.CaptureFixture[str]
) -> None:
    """S1.30: its driver continues what the dead one had begun."""
    play_all(Matrix(STORIES["cancelled"], places, crew), check_cancelled, capsys)


def test_a_deletion_killed_anywhere_can_be_repeated_and_leaves_nothing(
    places: MakePlace, crew: SimpleQueue[Forker], capsys: pytest.CaptureFixture[str]
) -> None:
    """S1.29: children first, so that none of them is left without its parent."""
    play_all(Matrix(STORIES["deleted"], places, crew), check_deleted, capsys)
