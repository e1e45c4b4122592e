"""The six rows of the matrix, with real processes: what waits where, and what a kill leaves."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perdure.cli.root import cli
from perdure.config import load
from perdure.errors import ConfigError

STORE = "session_stores: {main-db: {backend: sql, sql: {driver: sqlite, database: ./perdure.db}}}"
TOOLS = '''
from pathlib import Path
from perdure import tool

@tool(requires_approval=True)
def refund(cents: int) -> str:
    """Refund."""
    with Path("effects.log").open("a") as log:
        log.write(f"refund {cents}\\n")
    return "refunded"
'''
TURNS = [{"calls": [{"tool": "refund", "args": {"cents": 5}}]}, {"text": "All done."}]


@dataclass(frozen=True)
class Project:
    folder: Path

    def write(self, store: bool, mode: str | None) -> None:
        keys = ["llm: scripted:turns.json", "tools: [shop:refund]"]
        keys += ["session_store: main-db"] * store
        keys += [f"task: {{hitl: {{mode: {mode}}}}}"] * (mode is not None)
        agent = "\n    ".join(keys)
        text = f"{STORE if store else ''}\nagents:\n  shop:\n    {agent}\n"
        (self.folder / "perdure.yaml").write_text(text, "utf-8")
        (self.folder / "shop.py").write_text(TOOLS, "utf-8")
        (self.folder / "turns.json").write_text(json.dumps(TURNS), "utf-8")

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "perdure.cli", *words],
            cwd=self.folder,
            env={**os.environ, "PYTHONUTF8": "1", "PERDURE_LEASE": "2s"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )

    def run(self, *words: str) -> tuple[int, str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=30)
        return process.returncode, out + err

    def json(self, *words: str) -> Any:
        """What a command that only looks says; it needs no process of its own."""
        sys.modules.pop("shop", None)
        with chdir(self.folder):
            return json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)

    def pending(self, running: subprocess.Popen[str]) -> str:
        """The call that a process has begun to wait for."""
        assert running.stdout is not None
        for text in running.stdout:
            if "needs approval" in text:
                return str(self.json("pending", "list")["pending"][0]["id"])
        raise AssertionError(running.stderr and running.stderr.read())

    def seen(self, **facts: Any) -> Any:
        """The session, as soon as all of this is so."""
        end = time.monotonic() + 30
        while True:
            session = self.json("sessions", "show", "s")
            if all(session[name] == value for name, value in facts.items()):
                return session
            assert time.monotonic() < end, session
            time.sleep(0.05)

    def effects(self) -> list[str]:
        file = self.folder / "effects.log"
        return file.read_text("utf-8").splitlines() if file.exists() else []


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.mark.parametrize("mode", [None, "async"])
def test_async_the_process_is_gone_and_the_answer_still_works(
    project: Project, mode: str | None
) -> None:
    """S4.40 S4.51: with a durable store, `auto` and `async`."""
    project.write(store=True, mode=mode)
    code, told = project.run("run", "shop", "Go", "-s", "s")
    assert (code, project.effects()) == (8, [])
    assert "No process needs to run" in told
    code, told = project.run("approve", "@last")
    assert (code, project.effects()) == (0, ["refund 5"])
    assert "All done." in told


BLOCKING = [(False, None), (False, "blocking"), (True, "blocking")]


@pytest.mark.parametrize("store, mode", BLOCKING)
def test_blocking_the_answer_continues_the_same_process(
    project: Project, store: bool, mode: str | None
) -> None:
    """S4.40 S4.42 S4.43"""
    project.write(store, mode)
    running = project.start("run", "shop", "Go", "-s", "s")
    call = project.pending(running)
    assert running.poll() is None
    code, told = project.run("approve", call)
    assert code == 0, told
    with running:  # `communicate` would lose what the reader of stdout has buffered
        assert running.stdout is not None
        assert running.stderr is not None
        out, err = running.stdout.read(), running.stderr.read()
    assert running.returncode == 0, err
    assert f"approve   perdure approve {call}" in out
    assert "All done." in out
    assert project.effects() == ["refund 5"]
    events = project.json("sessions", "events", "s")["events"]
    assert sum(event["type"] == "agent_start" for event in events) == 1


def test_blocking_a_kill_loses_it_and_says_so(project: Project) -> None:
    """S4.46"""
    project.write(store=False, mode=None)
    running = project.start("run", "shop", "Go", "-s", "s")
    call = project.pending(running)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    # Its lease must run out; from then on it has no driver, and a worker finds that out.
    project.seen(driver=None)
    assert project.run("worker", "--once")[0] == 0
    assert project.json("sessions", "show", "s")["state"] == "failed"
    code, told = project.run("approve", call)
    assert code == 5
    assert f"refund ({call}): lost at restart: the process that waited in place" in told
    assert "hitl mode async with a durable session_store" in told
    assert project.json("sessions", "show", "s")["error"]["code"] == "LOST_AT_RESTART"
    assert project.effects() == []


def test_async_without_a_store_is_refused_at_load(project: Project) -> None:
    """S4.40 S4.41"""
    project.write(store=False, mode="async")
    code, told = project.run("worker", "--once")
    assert code == 2
    assert "agents.shop.task.hitl.mode: async HITL requires session_store to be configured" in told
    with pytest.raises(ConfigError, match="async HITL requires session_store to be configured"):
        load(project.folder / "perdure.yaml")


def test_from_blocking_to_async_takes_one_line(project: Project) -> None:
    """S4.45: and `config validate` prints it."""
    project.write(store=True, mode="blocking")
    file = project.folder / "perdure.yaml"
    text = file.read_text("utf-8").replace("    session_store: main-db\n", "")
    file.write_text(text.replace("    task: {hitl: {mode: blocking}}\n", ""), "utf-8")
    code, told = project.run("config", "validate")
    assert code == 0
    (warning,) = [one for one in told.splitlines() if one.startswith("warning")]
    line = warning.split("add to the agent: ")[1]
    assert line == "session_store: main-db"
    file.write_text(file.read_text("utf-8") + f"    {line}\n", "utf-8")
    assert project.run("run", "shop", "Go")[0] == 8
