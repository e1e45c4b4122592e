"""`perdure tasks exec`, `executions`, `get` and `put`, on a store here and on a server."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.executions import open_folder, task_options
from tests.support.server import Server

from perdure.cli import __main__ as program

__all__ = ["open_folder"]


class Project:
    """Commands in a folder, local or on its server."""

    def __init__(self, folder: Path, server: str | None) -> None:
        self.folder = folder
        self.options = [] if server is None else ["--server", server]

    def run(self, verb: str, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", program.__name__, "tasks", verb, *self.options, *words]
        return subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False
        )


@pytest.fixture(params=["local", "server"])
def project(request: pytest.FixtureRequest, open_folder: Path) -> Iterator[Project]:
    options = task_options(open_folder)
    lines = [f"  {key}: {json.dumps(value)}" for key, value in options.items()]
    (open_folder / "perdure.yaml").write_text("\n".join(["tasks:", *lines]))
    if request.param == "local":
        yield Project(open_folder, None)
        return
    server = Server(open_folder).start()
    try:
        yield Project(open_folder, server.url)
    finally:
        server.stop()


def test_a_command_prints_its_output_and_exits_with_its_code(project: Project) -> None:
    """S3.6"""
    assert project.run("create", "Work", "--id", "a").returncode == 0
    unsafe = project.run("create", "Safe", "--id", "safe", "--require", "fs")
    assert (unsafe.returncode, "does not guarantee fs" in unsafe.stderr) == (1, True)
    refused = project.run("exec", "a", "--", "true")
    assert refused.returncode == 5
    assert "attach_agent_to_task" in refused.stderr
    assert project.run("attach", "a", "me").returncode == 0
    done = project.run("exec", "a", "--", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
    mistyped = project.run("exec", "a", "--timout", "5s", "--", "true")
    assert (mistyped.returncode, mistyped.stdout) == (2, "")
    assert "--timout is not an option" in mistyped.stderr
    late = project.run("exec", "a", "--timeout", "300ms", "--", "sleep", "60")
    assert late.returncode == 124
    (project.folder / "file").write_bytes(b"\x00\xff")
    assert project.run("put", "a", "file", "d/copy").returncode == 0
    assert project.run("get", "a", "d/copy", "back").returncode == 0
    assert (project.folder / "back").read_bytes() == b"\x00\xff"
    rows = [row.split() for row in project.run("files", "a").stdout.splitlines()]
    assert ["folder", "d"] in rows
    assert ["2", "d/copy"] in [
        row.split() for row in project.run("files", "a", "d/").stdout.splitlines()
    ]
    listed = project.run("executions", "a", "--json")
    reasons = [item["reason"] for item in json.loads(listed.stdout)["executions"]]
    assert reasons == ["timeout", "exited"]
    detached = project.run("exec", "a", "--detach", "--", "echo later")
    if not project.options:
        assert detached.returncode == 2
        assert "--detach needs a server" in detached.stderr
        return
    followed = project.run("executions", "a", detached.stdout.strip())
    assert followed.stdout == "later\n"
