"""A run that waits in place asks whoever sits at its terminal."""

import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.stories.test_hitl_modes import Project


def test_a_blocking_run_asks_at_its_terminal(tmp_path: Path) -> None:
    """S4.42"""
    project = Project(tmp_path)
    project.write(store=False, mode=None)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "perdure.cli", "run", "shop", "Go"],
        cwd=project.folder,
        env={**os.environ, "PYTHONUTF8": "1", "NO_COLOR": "1"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = _read_until(ours, "approve? [")
    os.write(ours, b"approve?\n")  # no decision
    seen += _read_until(ours, "type one of yes, no")
    assert project.effects() == []
    os.write(ours, b"yes\n")
    seen += _read_until(ours, "All done.")
    assert process.wait(timeout=30) == 0, seen
    os.close(ours)
    assert project.effects() == ["refund 5"]


def _read_until(terminal: int, text: str) -> str:
    seen = ""
    while text not in seen:
        chunk = os.read(terminal, 4096)
        assert chunk, seen
        seen += chunk.decode("utf-8", "replace")
    return seen
