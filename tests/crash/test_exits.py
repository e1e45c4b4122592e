"""Tools that exit or block: their process continues, and says so."""

import signal
import subprocess
from pathlib import Path

from tests.support.server import CLI, Server, around, run

APP = '''
import argparse
import sys
import time
from perdure import Agent, Runtime, tool
from perdure.testing import ScriptedModel


@tool(idempotent=True)
def run_cli(arg: str) -> str:
    """Run a command line."""
    parser = argparse.ArgumentParser(prog="shop")
    parser.add_argument("--n", type=int)
    parser.parse_args([arg])
    return "ok"


@tool(idempotent=True)
async def leave() -> str:
    """Leave."""
    sys.exit(3)


@tool
async def block() -> str:
    """Block the event loop."""
    print("blocking", flush=True)
    time.sleep(60)
    return "never"


DONE = {"text": "Done."}
BAD = [{"tool": "run_cli", "args": {"arg": "--wrong"}}, {"tool": "leave"}]
rt = Runtime("sqlite:///h.db", agents=[
    Agent("exits", model=ScriptedModel([{"calls": BAD}, DONE]), tools=[run_cli, leave]),
    Agent("good", model=ScriptedModel([{"text": "Hello."}])),
    Agent("blocks", model=ScriptedModel([{"calls": [{"tool": "block"}]}]), tools=[block]),
])
'''


async def test_a_tool_that_exits_ends_neither_the_server_nor_other_sessions(
    tmp_path: Path,
) -> None:
    """A1"""
    (tmp_path / "app.py").write_text(APP)
    with Server(tmp_path, "--app", "app:rt") as server:
        async with server.client(None) as client:
            bad = client.session("bad", agent="exits")
            assert (await bad.run("Go")).output == "Done."
            assert (await client.session("s", agent="good").run("Go")).output == "Hello."
            events = await bad.events()
        results = [e.data["result"] for e in events if e.type == "tool_result"]
        assert sorted(results) == ["SystemExit: 2", "SystemExit: 3"]
        assert server.stop() == 0


def test_a_worker_survives_a_tool_that_exits(tmp_path: Path) -> None:
    """A1"""
    (tmp_path / "app.py").write_text(APP)
    app = ("--app", "app:rt")
    for name, agent in (("bad", "exits"), ("s", "good")):
        sent = run(tmp_path, *app, "run", agent, "--session", name, "--detach", "Go")
        assert sent.returncode == 0, sent.stderr
    worked = run(tmp_path, *app, "worker", "--once")
    assert worked.returncode == 0, worked.stderr
    shown = run(tmp_path, *app, "sessions", "list", "--state", "completed")
    assert "bad" in shown.stdout
    assert "good" in shown.stdout


def test_a_signal_still_stops_a_process_whose_event_loop_is_blocked(tmp_path: Path) -> None:
    """A1: the interrupt of a signal is not the failure of the tool that it arrives in."""
    (tmp_path / "app.py").write_text(APP)
    command = [*CLI, "--app", "app:rt", "run", "blocks", "Go"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=around(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        while "blocking" not in process.stdout.readline():
            assert process.poll() is None
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                continue
        assert process.returncode != 0
