"""Sessions that stop every process that drives them: they fail, and others continue."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.server import run

from perdure import Agent, Runtime
from perdure.testing import ScriptedModel

APP = '''
import os
import signal
from perdure import Agent, Runtime, tool
from perdure.core.conversation.messages import Answer
from perdure.testing import ScriptedModel


def die():
    with open("deaths", "a") as file:
        file.write("x")
    if not os.path.exists("cured"):
        os.kill(os.getpid(), signal.SIGKILL)


@tool(idempotent=True)
def act() -> str:
    """Act."""
    die()
    return "acted"


class Model:
    name = "test:deadly"

    async def answer(self, request):
        die()
        yield Answer("Done.")


scripted = ScriptedModel([{"calls": [{"tool": "act"}]}, {"text": "Done."}])
rt = Runtime(os.environ["STORE"], poison_after=int(os.environ["POISON_AFTER"]), agents=[
    Agent("model", model=Model()),
    Agent("slow", model=ScriptedModel([{"text": "Done.", "delay_ms": 200}])),
    Agent("tool", model=scripted, tools=[act]),
])
'''


class Project:
    """A project in a folder, on a store."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        self.env = {"STORE": store, "POISON_AFTER": "2"}
        (folder / "app.py").write_text(APP)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run(self.folder, "--app", "app:rt", *words, **self.env)

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json").stdout)

    def deaths(self) -> int:
        return len((self.folder / "deaths").read_text())


@pytest.fixture(params=["sqlite", "postgres"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    url = f"sqlite:///{tmp_path}/h.db"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    return Project(tmp_path, url)


@pytest.mark.parametrize("agent", ["model", "tool"])
def test_a_session_that_kills_its_process_again_and_again_fails_and_can_be_resumed(
    project: Project, agent: str
) -> None:
    """S4.32"""
    assert project.run("run", agent, "-s", "bad", "--detach", "Go").returncode == 0
    shown = project.json("sessions", "show", "bad")
    while shown["state"] != "failed":  # a dead worker is noticed at once, or a moment later
        assert project.run("worker", "--once").returncode in (0, -9)
        shown = project.json("sessions", "show", "bad")
    assert project.deaths() == 2

    assert (shown["state"], shown["error"]["code"]) == ("failed", "POISONED")
    assert "stopped 2 times" in shown["error"]["error"]
    doctor = project.run("doctor")
    assert doctor.returncode != 0
    assert "All is well" not in doctor.stdout
    assert "session bad of agent" in doctor.stdout
    assert "sessions resume bad" in doctor.stdout

    (project.folder / "cured").touch()
    assert project.run("sessions", "resume", "bad").returncode == 0
    assert project.json("sessions", "show", "bad")["output"] == "Done."
    assert "POISONED" not in project.run("doctor").stdout


async def test_a_session_that_kills_its_processes_is_isolated_among_many(
    project: Project,
) -> None:
    """S4.32: the others, which were driven with it, complete."""
    project.env["POISON_AFTER"] = "3"
    names = [f"good{number}" for number in range(12)]
    agents = {name: Agent(name, model=ScriptedModel([])) for name in ("slow", "model")}
    async with Runtime(project.env["STORE"], agents=list(agents.values())) as rt:
        for name in names:
            await rt.session(name, agent=agents["slow"]).send("Go")
        await rt.session("bad", agent=agents["model"]).send("Go")
    states: dict[str, Any] = {}
    while not states or set(states.values()) - {"completed", "failed"}:
        assert project.run("worker", "--once").returncode in (0, -9)
        rows = project.json("sessions", "list")["sessions"]
        states = {row["sessionID"]: row["state"] for row in rows}
    assert states == {**dict.fromkeys(names, "completed"), "bad": "failed"}
    assert project.json("sessions", "show", "bad")["error"]["code"] == "POISONED"
    assert project.deaths() == 3
