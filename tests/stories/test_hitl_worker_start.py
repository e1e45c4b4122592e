"""What a worker does at its start with what waits, what was running, and what had expired."""

import os
import signal
from pathlib import Path

import pytest
from tests.stories.test_hitl_modes import STORE, Project

TOOLS = '''
import os, time
from pathlib import Path
from perdure import Approval, tool

@tool
def slow() -> str:
    """Take time, the first time."""
    began = Path("began")
    if not began.exists():
        began.touch()
        print("slow needs approval", flush=True)  # the line that the test waits for
        time.sleep(60)
    return "done"

@tool(requires_approval=Approval(timeout=0.001))
def refund(cents: int) -> str:
    """Refund."""
    return "refunded"
'''


def project(folder: Path, recovery: str, tool: str) -> Project:
    args = "{}" if tool == "slow" else '{"cents": 5}'
    (folder / "turns.json").write_text(
        f'[{{"calls": [{{"tool": "{tool}", "args": {args}}}]}}, {{"text": "All done."}}]', "utf-8"
    )
    (folder / "shop.py").write_text(TOOLS, "utf-8")
    agent = f'{{llm: "scripted:turns.json", session_store: main-db, tools: [shop:{tool}]}}'
    text = f"{STORE}\nagents: {{shop: {agent}}}\n{recovery}\n"
    (folder / "perdure.yaml").write_text(text, "utf-8")
    return Project(folder)


@pytest.mark.parametrize(
    "recovery, state",
    [
        ("", "completed"),
        ("recovery: {running: resume}", "completed"),
        ("recovery: {running: fail}", "failed"),
    ],
)
def test_what_was_running_is_gone_on_with_or_failed(
    tmp_path: Path, recovery: str, state: str
) -> None:
    """S4.32 S4.50"""
    made = project(tmp_path, recovery, "slow")
    running = made.start("run", "shop", "Go", "-s", "s")
    assert running.stdout is not None
    assert any("slow needs approval" in text for text in running.stdout)
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    worker = made.start("worker")  # it begins before the lease of the dead one has run out
    try:
        session = made.seen(state=state)
    finally:
        worker.terminate()
        worker.communicate()
    if state == "failed":
        assert session["error"]["code"] == "INTERRUPTED_RUN"
        assert session["error"]["error"].startswith("it was running when its process stopped")
        code, told = made.run("sessions", "resume", "s")  # a person may still go on with it
        assert code == 0, told


DEADLY = """
import os, signal
from pathlib import Path
from perdure import Agent, Runtime
from perdure.core.conversation.messages import Answer

class Model:
    name = "test:deadly"

    async def answer(self, request):
        if not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield Answer("All done.")

rt = Runtime.from_config("perdure.yaml", agents=[Agent("deadly", model=Model())])
"""


@pytest.mark.parametrize("recovery, state", [("resume", "completed"), ("fail", "failed")])
def test_a_run_that_was_killed_in_its_first_model_request_is_recovered_as_configured(
    tmp_path: Path, recovery: str, state: str
) -> None:
    """S4.50"""
    made = project(tmp_path, f"recovery: {{running: {recovery}}}", "refund")
    (tmp_path / "deadly.py").write_text(DEADLY, "utf-8")
    app = ("--app", "deadly:rt")
    assert made.run("run", "deadly", "Go", "-s", "s", *app)[0] != 0
    assert (tmp_path / "killed").exists()
    assert made.run("worker", "--once", *app)[0] == 0
    session = made.json("sessions", "show", "s", *app)
    assert session["state"] == state
    if state == "failed":
        assert session["error"]["code"] == "INTERRUPTED_RUN"
        assert made.run("sessions", "resume", "s", *app)[0] == 0


@pytest.mark.parametrize("running, state", [("resume", "completed"), ("fail", "failed")])
def test_a_killed_run_is_recovered_as_an_argument_of_the_runtime_says(
    tmp_path: Path, *, running: str, state: str
) -> None:
    """S4.50"""
    made = project(tmp_path, "", "refund")
    constructor = f"Runtime('sqlite:///d.db', recovery={{'running': {running!r}}}, "
    code = DEADLY.replace('Runtime.from_config("perdure.yaml", ', constructor)
    (tmp_path / "deadly.py").write_text(code, "utf-8")
    app = ("--app", "deadly:rt")
    assert made.run("run", "deadly", "Go", "-s", "s", *app)[0] != 0
    assert made.run("worker", "--once", *app)[0] == 0
    assert made.json("sessions", "show", "s", *app)["state"] == state


def test_what_had_expired_is_settled_by_its_policy(tmp_path: Path) -> None:
    """S4.49 S4.50"""
    made = project(tmp_path, "", "refund")
    assert made.run("run", "shop", "Go", "-s", "s")[0] == 8
    code, told = made.run("worker", "--once")
    assert code == 0
    assert "1 call had expired" in told
    assert made.json("sessions", "show", "s")["state"] == "completed"
