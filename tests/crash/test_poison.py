"""Sessions that stop every process that drives them: they fail, and others continue."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.server import run

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
rt = Runtime(os.environ["STORE"], poison_after=2, agents=[
    Agent("model", model=Model()),
    Agent("tool", model=scripted, tools=[act]),
])
'''


class Project:
    """A project in a folder, on a store."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        self._env = {"STORE": store}
        (folder / "app.py").write_text(APP)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run(self.folder, "--app", "app:rt", *words, **self._env)

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
