"""Sessions that stop every process that drives them: they fail, and others continue."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.child_tasks import child_task
from tests.support.server import Server, around, run

from perdure import Agent, Runtime
from perdure.app import service_of
from perdure.runtime.sessions.task_verbs import AnyTaskVerbs
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.testing import ScriptedModel
from perdure.views.tasks import BackgroundTask

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


if os.environ.get("KILL"):  # this process, as soon as it has claimed sessions
    from perdure.runtime.engine.heartbeat import LeaseHolder

    claim = LeaseHolder.claim

    async def claim_and_die(self, kind, *options):
        leases = await claim(self, kind, *options)
        if leases and kind.startswith("session:"):
            os.kill(os.getpid(), signal.SIGKILL)
        return leases

    LeaseHolder.claim = claim_and_die

scripted = ScriptedModel([{"calls": [{"tool": "act"}]}, {"text": "Done."}])
RECOVERY = {"poison_after": int(os.environ["POISON_AFTER"])}
rt = Runtime(os.environ["STORE"], recovery=RECOVERY, agents=[
    Agent("model", model=Model()),
    Agent("hanging", model=ScriptedModel([{"text": "Done.", "delay_ms": 600_000}])),
    Agent("slow", model=ScriptedModel([{"text": "Done.", "delay_ms": 200}])),
    Agent("tool", model=scripted, tools=[act]),
])
'''

# One process after the other, without the time in which an interpreter starts.
WORKERS = """
import asyncio, os, sys, time
import perdure.store.postgres.store, perdure.store.sqlite.store, perdure.testing

async def work():
    from app import rt
    async with rt:
        await rt.work(once=True)

kills = int(sys.argv[1])
codes = []
while codes.count(-9) < kills or not codes:  # a death may be noticed a moment later
    start = time.monotonic()
    if (pid := os.fork()) == 0:
        os.environ["KILL"] = "1" if kills else ""
        asyncio.run(work())
        os._exit(0)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    print(time.monotonic() - start)
"""


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

    def workers(self, *, kills: int = 0) -> float:
        """Let one worker after the other be killed, or one work; return the seconds of the last."""
        command = [sys.executable, "-c", WORKERS, str(kills)]
        env = around(**self.env)
        run = subprocess.run(
            command, cwd=self.folder, env=env, check=True, stdout=subprocess.PIPE, text=True
        )
        return float(run.stdout.split()[-1])

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
    assert "POISONED: Session bad failed" in doctor.stdout
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


async def test_after_ten_kills_sessions_take_at_most_three_times_as_long(project: Project) -> None:
    """S1.23, S4.32: at the worst instant, when they have just been claimed."""
    agent = Agent("slow", model=ScriptedModel([]))
    project.env["POISON_AFTER"] = "5"
    took_s = dict[int, float]()
    async with Runtime(project.env["STORE"], agents=[agent]) as rt:
        store = service_of(rt).tasks.store
        for kills in (0, 10):
            tasks = [await rt.spawn("slow", "Go") for _ in range(30)]
            streams = [(await child_task(rt, task)).stream for task in tasks]
            if kills:
                project.workers(kills=kills)
            slices = [await store.read(stream, limit=0) for stream in streams]
            while any(one.holder for one in slices):  # until the last death is noticed
                await store.reap(store.now())
                slices = [await store.read(stream, limit=0) for stream in streams]
            assert sorted(one.tries for one in slices) == (
                [2] * 14 + [3] * 16 if kills else [0] * 30
            )
            took_s[kills] = project.workers()
            assert {(await child_task(rt, task)).status for task in tasks} == {"completed"}
    assert took_s[10] < 3 * took_s[0]


async def test_a_task_that_is_held_back_says_so_in_lists_and_for_how_long(project: Project) -> None:
    """S4.32"""
    project.env["POISON_AFTER"] = "9"
    server = Server(project.folder, "--app", "app:rt", **project.env)
    agent = Agent("hanging", model=ScriptedModel([]))
    async with Runtime(project.env["STORE"], agents=[agent]) as rt:
        tasks = [await rt.spawn("hanging", "Go") for _ in range(4)]
        streams = [(await child_task(rt, task)).stream for task in tasks]
        store, verbs = service_of(rt).tasks.store, AnyTaskVerbs(service_of(rt), Caller())
        for number in (1, 2):
            with server:
                tries = {0}
                while tries != {number}:
                    tries = {(await store.read(stream, limit=0)).tries for stream in streams}
        with server:
            held: list[str] = []
            while len(held) != 2:  # the other two are driven
                rows = (await verbs.list({})).tasks
                held = [row.id for row in rows if isinstance(row, BackgroundTask) and row.findings]
            text = "is held back (HELD_BACK), and has not moved for "
            # A worker claims them every 2 s, and returns them at once.
            while f"{held[0]} {text}" not in project.run("tasks", "list").stdout:
                pass
            words = ("--server", server.url, "tasks", "show", held[0])
            while text not in run(project.folder, *words).stdout:
                pass
