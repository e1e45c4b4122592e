"""The demo is a test of its own: real workers, killed twice."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.cli.demo.count import count
from perdure.cli.demo.environment import DemoEnvironment, DemoSnapshot


@pytest.fixture
def store(request: pytest.FixtureRequest) -> list[str]:
    if request.param == "sqlite":
        return []
    url: str = request.getfixturevalue("postgres_url")
    return ["--store", url]


@pytest.mark.parametrize(
    "store, workers", [("sqlite", 1), ("sqlite", 3), ("postgres", 3)], indirect=["store"]
)
def test_the_demo_loses_nothing_and_repeats_nothing(
    tmp_path: Path, store: list[str], workers: int
) -> None:
    """S0.15, S0.28, S0.65, S0.69, S4.3, S4.27, S4.51"""
    words = ["demo", "--auto", "--json", "--keep", "stage", "--workers", str(workers), *store]
    done = subprocess.run(
        [sys.executable, "-m", "perdure.cli", *words],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["ok"] is True
    assert told["kills"] == 2
    assert told["tools"] == {
        "lookup_order": 1,
        "refund": 2,
        "ask_warehouse": 1,
        "notify_customer": 1,
    }
    assert told["modelTurns"] == {"asked": 4, "recorded": 4}
    assert told["events"]["lost"] == 0
    assert told["effects"] == {"count": 3, "repeated": 0}
    assert told["paidCents"] == [4000]
    if workers > 1:
        assert told["takenOver"]["by"] != told["takenOver"]["worker"]
    config = (tmp_path / "stage" / "perdure.yaml").read_text()
    assert not any(url in config for url in store), "it may hold a password"


@pytest.mark.parametrize("url", ["memory:", "sqlite:///here.db"])
def test_the_demo_plays_on_postgresql_or_on_a_file_of_its_own(tmp_path: Path, url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "perdure.cli", "demo", "--auto", "--store", url],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "or on PostgreSQL" in done.stderr


def test_the_demo_does_not_play_where_something_lies(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    done = subprocess.run(
        [sys.executable, "-m", "perdure.cli", "demo", "--auto", "--keep", str(tmp_path)],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "is not empty" in done.stderr


def test_the_numbers_of_the_demo_can_be_wrong(tmp_path: Path) -> None:
    ran = ["lookup_order", "ask_warehouse", "refund", "refund", "notify_customer"]
    _write(tmp_path / "runs.log", [{"tool": tool, "effect": f"e-{tool}"} for tool in ran])
    world: list[dict[str, Any]] = [
        {"tool": "ask_warehouse", "effect": "e1"},
        {"tool": "refund", "effect": "e2", "cents": 4000},
        {"tool": "notify_customer", "effect": "e3"},
    ]
    _write(tmp_path / "world.log", world)
    _write(tmp_path / "script.log", [{"turn": turn} for turn in range(4)])
    log = [{"seq": n, "type": "assistant"} for n in range(1, 5)]
    session = {"state": "completed", "output": "ok"}
    stage, end = DemoEnvironment(tmp_path), DemoSnapshot(session, log)
    assert count(stage, end, [end, end], [0]).is_right
    assert not count(stage, end, [end, end], [0, 1]).is_right
    lost = count(stage, DemoSnapshot(session, log[:2] + log[3:]), [end, end], [0])
    assert (lost.is_right, lost.numbers["events"]["lost"]) == (False, 1)
    _write(tmp_path / "world.log", [*world, world[1]])
    twice = count(stage, end, [end, end], [0])
    assert (twice.is_right, twice.numbers["effects"]["repeated"]) == (False, 1)


def _write(file: Path, lines: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(one) + "\n" for one in lines))
