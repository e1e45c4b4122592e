"""The demo is a test of its own: real workers, killed twice."""

import json
import subprocess
import sys
from pathlib import Path


def test_the_demo_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    """S0.15, S0.28, S0.65, S0.69, S4.3, S4.27, S4.51"""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "demo", "--auto", "--json", "--keep", "stage"],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=90,
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
    assert (tmp_path / "stage" / "holdfast.yaml").exists()


def test_the_demo_does_not_play_where_something_lies(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "demo", "--auto", "--keep", str(tmp_path)],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "is not empty" in done.stderr
