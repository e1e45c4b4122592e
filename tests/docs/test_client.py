"""The page about working with a server tells the truth: its examples run, against a server."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
import yaml
from tests.serve.processes import CI, OPS, Server, make_project

from holdfast.client import Client
from holdfast.core import webhooks

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "client.md").read_text()
SECRET = "hush-hush-4242"  # noqa: S105 - nobody's


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server as the page configures one behind a proxy."""
    folder = tmp_path_factory.mktemp("project")
    (said,) = [yaml.safe_load(block)["server"] for block in blocks("yaml")]
    behind = {name: said[name] for name in ("host", "public_url", "trusted_proxies")}
    make_project(folder, "sqlite", webhook_secret=SECRET, **behind)
    deploy = folder / "deploy.sh"
    deploy.write_text("#!/bin/sh\necho deployed\n")
    deploy.chmod(0o755)
    one = Server(folder)
    anyio.run(one.started)
    yield one
    one.kill()


def waiting(server: Server, session: str) -> dict[str, dict[str, Any]]:
    """The calls that a new session waits for, by tool."""

    async def begin(client: Client) -> dict[str, Any]:
        return await client.session(session, agent="shop").run("Go")

    session_json = server.client().run_sync(begin)
    return {call["tool"]: call for call in session_json["pending"]}


def shell(server: Server, script: str, **environ: str) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-ec", script],
        cwd=server.folder,
        env={**os.environ, "PATH": path, "URL": server.url, **environ},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (script, done.stdout, done.stderr)
    return done.stdout


def test_a_call_is_completed_from_a_shell(server: Server) -> None:
    """S0.45, S0.48"""
    call = waiting(server, "order-991")["deploy"]["id"]
    said = shell(server, blocks("sh")[0], TOKEN=OPS, CALL=call)
    taken, asked = said.replace("}{", "}\n{").splitlines()
    assert taken == '{"success":true,"sessionID":"order-991"}'
    assert taken in PAGE
    assert json.loads(asked)["result"]["output"] == "https://preview.example/7"


@pytest.mark.parametrize("works", [True, False])
def test_a_call_is_completed_from_a_ci_job(server: Server, works: bool) -> None:
    """S0.45, S0.46: with a token that can do nothing else."""
    call = waiting(server, f"ci-{works}")["deploy"]["id"]
    script = blocks("sh")[1] if works else blocks("sh")[1].replace("./deploy.sh", "false")
    assert '"success":true' in shell(server, script, TOKEN=CI, CALL=call)


def test_a_call_is_completed_by_a_service_that_signs(server: Server) -> None:
    """S0.55: without a token."""
    call = waiting(server, "signed")["deploy"]
    names: dict[str, Any] = {}
    exec(blocks("python")[0], names)  # noqa: S102 - it is our page
    url = call["callbackURL"].replace("https://agents.example", server.url)
    told = names["call_back"](url, webhooks.derive(SECRET, call["id"]), "deployed")
    assert told == {"success": True, "sessionID": "signed"}


def test_the_program_on_the_page_runs(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    exec(blocks("python")[1], {"url": server.url, "token": OPS})  # noqa: S102 - it is our page
    assert capsys.readouterr().out == "All done.\n"


def test_the_commands_on_the_page_work(server: Server) -> None:
    said = [shell(server, block, TOKEN=OPS) for block in blocks("sh")[2:]][-1]
    assert "holdfast_open_calls" in said
    named = set(re.findall(r"`(holdfast_[a-z_]+)", PAGE))
    assert len(named) >= 7
    assert {name for name in named if name not in said} == set()


async def test_the_server_stands_behind_a_proxy(server: Server) -> None:
    """As the proxies on the page pass requests on."""
    headers = {
        "Host": "agents.example",
        "X-Forwarded-For": "203.0.113.7",
        "X-Forwarded-Proto": "https",
        "Authorization": f"Bearer {OPS}",
    }
    async with httpx2.AsyncClient(base_url=server.url, headers=headers) as proxy:
        listed = (await proxy.get("/pending?tool=deploy&status=all")).json()["pending"]
        stranger = await proxy.get("/pending", headers={"Host": "evil.example"})
    assert all(one["callbackURL"].startswith("https://agents.example/") for one in listed)
    assert stranger.status_code == 403
    for proxy_page in (*blocks("nginx"), *blocks("caddyfile")):
        assert "agents.example" in proxy_page
        assert "127.0.0.1:4747" in proxy_page


def test_every_link_of_the_page_leads_somewhere_and_the_readme_leads_to_it() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
    assert "(docs/client.md)" in (ROOT / "README.md").read_text()
