"""The page about sessions over HTTP tells the truth: its commands work, one after the other."""

import json
import os
import re
import subprocess
from pathlib import Path

from tests.support.cli_project import SHOP
from tests.support.paths import ROOT
from tests.support.server import Server, shop_server

PAGE = (ROOT / "docs" / "http-sessions.md").read_text()
FOREVER = "curl -sN"


def shell(command: str, server: Server, task: str) -> str:
    done = subprocess.run(
        ["sh", "-c", command.replace(FOREVER, f"{FOREVER} --max-time 1")],
        env={**os.environ, "URL": server.url, "TASK": task},
        capture_output=True,
        encoding="utf-8",
        timeout=30,
        check=False,
    )
    assert done.returncode == (28 if FOREVER in command else 0), (command, done.stderr)
    return done.stdout


def test_the_commands_of_the_page_work(tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    assert len(commands) > 12
    server = shop_server(tmp_path)
    (tmp_path / "app.py").write_text(SHOP)
    task = ""
    with server:
        for command in commands:
            said = shell(command, server, task)
            if FOREVER in command:
                assert "\ndata: {" in said, command
                continue
            told = json.loads(said)
            assert "error" not in told or told["error"] is None, (command, told)
            task = told.get("taskID") or task
    assert "refund 4200" in (tmp_path / "effects.log").read_text()
