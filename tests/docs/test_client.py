"""The page about working with a server tells the truth: its examples run, against a server."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import ROOT
from tests.support.server import Server
from tests.support.server_project import OPS, make_project

from perdure.client import Client
from perdure.core.webhooks import signatures as webhooks
from perdure.views.sessions import Result

PAGE = (ROOT / "docs" / "client.md").read_text()
SECRET = "hush-hush-4242"  # noqa: S105 - nobody's


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("project")
    make_project(folder, "sqlite", webhook_secret=SECRET)
    with Server(folder) as one:
        yield one


def waiting(server: Server, session: str) -> dict[str, dict[str, Any]]:
    """The calls that a new session waits for, by tool."""

    async def begin(client: Client) -> Result:
        return await client.session(session, agent="shop").run("Go")

    parked = server.client(OPS).run_sync(begin)
    return {call.tool: call.to_json() for call in parked.pending}


def shell(server: Server, script: str, **environ: str) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    state = {"XDG_STATE_HOME": str(server.folder)}
    ours, theirs = pty.openpty()  # so that @last is the call of this terminal
    done = subprocess.run(
        ["sh", "-ec", script],
        cwd=server.folder,
        env={**os.environ, "PATH": path, "URL": server.url, **state, **environ},
        stdin=theirs,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 0, (script, done.stdout, done.stderr)
    return done.stdout


def test_a_call_is_completed_by_a_service_that_signs(server: Server) -> None:
    """S0.55: without a token."""
    call = waiting(server, "signed")["deploy"]
    names: dict[str, Any] = {}
    exec(blocks("python")[1], names)  # noqa: S102 - it is our page
    told = names["call_back"](
        call["callbackURL"], webhooks.derive_secret(SECRET, call["id"]), "deployed"
    )
    assert told == {"success": True, "sessionID": "signed"}


def test_the_program_on_the_page_runs(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    exec(blocks("python")[0], {"url": server.url, "token": OPS})  # noqa: S102 - it is our page
    assert capsys.readouterr().out == "All done.\n"


def test_the_commands_on_the_page_work(server: Server) -> None:
    said = [shell(server, block, TOKEN=OPS) for block in blocks("sh")][-1]
    assert "perdure_open_calls" in said
    named = set(re.findall(r"`(perdure_[a-z_]+)", PAGE))
    assert len(named) >= 7
    assert {name for name in named if name not in said} == set()


def test_every_link_of_the_page_leads_somewhere_and_the_readme_leads_to_it() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
    assert "(docs/client.md)" in (ROOT / "README.md").read_text()
