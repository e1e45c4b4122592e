"""Ctrl-C and the status line, at a real terminal, with real signals."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

APP = """
import asyncio, logging, sys, time
from pathlib import Path
from perdure import Agent, Runtime, tool
from perdure.runtime.engine import drives
from perdure.testing import ScriptedModel

drives.GRACE_S = 600  # longer than a test: whatever is not cancelled makes it fail

@tool
async def naps(seconds: float) -> str:
    Path("began").touch()
    await asyncio.sleep(seconds)
    while not seconds and not Path("go").exists():
        await asyncio.sleep(0.02)
    return "rested"

@tool
def sleeps(seconds: float) -> str:
    Path("began").touch()
    time.sleep(seconds)
    return "slept"

class Mute:
    name = "mute:model"
    async def answer(self, request):
        Path("began").touch()
        await asyncio.sleep(600)
        yield

def agent(name, call):
    model = ScriptedModel([{"calls": [call]}, {"text": "Awake."}])
    return Agent(name, model=model, tools=[naps, sleeps])

rt = Runtime("sqlite:///app.db", agents=[
    agent("async", {"tool": "naps", "args": {"seconds": 600}}),
    agent("sync", {"tool": "sleeps", "args": {"seconds": 600}}),
    agent("short", {"tool": "naps", "args": {"seconds": 0}}),
    Agent("mute", model=Mute()),
])

if __name__ == "__main__":
    async def main():
        async with rt:
            await rt.session("s", agent=sys.argv[1]).run("Go")
    asyncio.run(main())
"""


@dataclass
class Screen:
    """A program at a pseudo-terminal."""

    process: subprocess.Popen[bytes]
    terminal: int
    text: str = ""

    def read_until(self, pattern: str) -> None:
        while not re.search(pattern, self.text):
            self.text += os.read(self.terminal, 4096).decode("utf-8", "replace")

    def read_to_end(self) -> int:
        try:
            while chunk := os.read(self.terminal, 4096):
                self.text += chunk.decode("utf-8", "replace")
        except OSError:  # the other side is closed
            pass
        return self.process.wait(timeout=60)

    def press_ctrl_c(self) -> None:
        self.process.send_signal(signal.SIGINT)


@contextmanager
def screen(folder: Path, *words: str) -> Iterator[Screen]:
    (folder / "app.py").write_text(APP)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONUTF8": "1", "NO_COLOR": "1", "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        yield Screen(process, ours)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(ours)


def run_words(agent: str) -> tuple[str, ...]:
    return ("-m", "perdure.cli", "run", agent, "Go", "-s", "s", "--app", "app:rt")


def test_a_status_line_shows_the_running_tool_and_vanishes(tmp_path: Path) -> None:
    with screen(tmp_path, *run_words("short")) as shown:
        shown.read_until(r"… naps\(seconds=0\)  [1-9]\d*s")
        (tmp_path / "go").touch()
        assert shown.read_to_end() == 0
    lines = [re.split("\r\x1b\\[K", line)[-1] for line in shown.text.split("\r\n")]
    assert any(line.startswith("✓ naps(seconds=0)") for line in lines)
    assert not any(line.startswith("…") for line in lines)


def test_a_status_line_shows_that_the_model_is_waited_for(tmp_path: Path) -> None:
    with screen(tmp_path, *run_words("mute")) as shown:
        shown.read_until(r"… waiting for the model  [1-9]\d*s")


@pytest.mark.parametrize("agent", ["async", "mute"])
def test_ctrl_c_answers_at_once_and_cancels(tmp_path: Path, agent: str) -> None:
    with screen(tmp_path, *run_words(agent)) as shown:
        shown.read_until("… ")
        while not (tmp_path / "began").exists():
            time.sleep(0.02)
        shown.press_ctrl_c()
        shown.read_until("stopping; press Ctrl-C again to force")
        assert shown.read_to_end() == 130
    assert "Interrupted. The progress of session s is saved." in shown.text
    assert "Traceback" not in shown.text


def test_a_second_ctrl_c_ends_the_process_during_a_call_that_cannot_be_cancelled(
    tmp_path: Path,
) -> None:
    with screen(tmp_path, *run_words("sync")) as shown:
        shown.read_until(r"… sleeps\(")
        shown.press_ctrl_c()
        shown.read_until("stopping; press Ctrl-C again to force")
        shown.press_ctrl_c()
        assert shown.read_to_end() == 130
    assert "Traceback" not in shown.text


@pytest.mark.parametrize("agent", ["async", "mute"])
def test_a_program_in_python_ends_promptly_after_ctrl_c(tmp_path: Path, agent: str) -> None:
    with screen(tmp_path, "app.py", agent) as shown:
        while not (tmp_path / "began").exists():
            time.sleep(0.02)
        shown.press_ctrl_c()
        assert shown.read_to_end() != 0
    assert "KeyboardInterrupt" in shown.text
    assert shown.text.count('  File "') <= 8, shown.text
