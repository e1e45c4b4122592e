"""Ten processes with ten sessions each on one store: none hears of locks, nothing is lost."""

import json
import sqlite3
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from tests.proof.crowd import LONGEST_S, PROCESSES, SESSIONS, TOOLS, TURNS
from tests.support.paths import ROOT

from perdure import Event, Runtime


def play(folder: Path, store: str, seconds: float) -> list[dict[str, Any]]:
    """Let the crowd live for a while; answers what each process said in the end."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.proof.crowd", str(folder), store, str(seconds)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds + LONGEST_S + 15,
        check=False,
    )
    log = (folder / "log").read_text()
    assert (done.returncode, log) == (0, ""), done.stderr + log[:4000]
    assert json.loads(done.stdout) == [0] * PROCESSES
    return [json.loads((folder / f"member-{n}.json").read_text()) for n in range(PROCESSES)]


@pytest.mark.parametrize("seconds", [3.0, pytest.param(90.0, marks=pytest.mark.soak)])
async def test_a_crowd_of_processes_loses_nothing_and_starves_nobody(
    tmp_path: Path, shared_store: str, seconds: float
) -> None:
    """Approvals, results, take-overs of each other's sessions, and checkpoints all the while."""
    members = await to_thread.run_sync(play, tmp_path, shared_store, seconds)
    effects = [line for member in members for line in member["intervals"]]
    by_session: dict[str, list[dict[str, Any]]] = {}
    for line in sorted(effects, key=lambda line: float(line["began"])):
        by_session.setdefault(line["session"], []).append(line)
    async with Runtime(shared_store) as rt:
        for number, member in enumerate(members):
            for one in range(SESSIONS):
                session = rt.session(f"p{number}-s{one}")
                runs = member["done"][session.id]
                assert (await session.get()).state == "completed"
                check_log(await session.events(limit=100_000), runs)
                tools = [line["tool"] for line in by_session[session.id]]
                assert tools == TOOLS * runs
        assert [call async for call in rt.pending()] == []
    assert len({line["effect"] for line in effects}) == len(effects)
    check_fair(members)
    assert count_overlaps(members) >= 10
    scheme, _, database = shared_store.partition(":///")
    if scheme == "sqlite":
        check_integrity(Path(database))
        assert int((tmp_path / "checkpoints").read_text()) >= 20


def check_log(events: list[Event], runs: int) -> None:
    """The log of one session is that of so many runs, in order, each call settled once."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    said = [event.data["content"] for event in events if event.type == "user"]
    assert said == [f"run {n}" for n in range(1, runs + 1)]
    calls = [event.data for event in events if event.type == "tool_call"]
    assert [call["tool"] for call in calls] == TOOLS * runs
    assert Counter(call["id"] for call in calls) == Counter(
        event.data["toolCallId"] for event in events if event.type == "tool_result"
    )
    turns = [event.data["turn"] for event in events if event.type == "assistant"]
    assert turns == list(range(1, runs * (len(TURNS) + 1) + 1))
    assert not any(event.data.get("interrupted") for event in events)


def check_integrity(database: Path) -> None:
    connection = sqlite3.connect(database)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def check_fair(members: list[dict[str, Any]]) -> None:
    """Each process has committed at least a third of what it would have if all were alike."""
    commits = [member["done"]["commits"] for member in members]
    assert min(commits) >= sum(commits) / len(commits) / 3, commits


def count_overlaps(members: list[dict[str, Any]]) -> int:
    """How often tools of different sessions ran at the same time in different processes."""
    lines = [(line, member["pid"]) for member in members for line in member["intervals"]]
    lines.sort(key=lambda pair: float(pair[0]["began"]))
    return sum(
        one_pid != two_pid and one["session"] != two["session"] and two["began"] < one["ended"]
        for (one, one_pid), (two, two_pid) in pairwise(lines)
    )
