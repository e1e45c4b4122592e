"""The pages about the server tell the truth: what stands on them runs."""

import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.http_shop import TURNS
from tests.support.paths import ROOT
from tests.support.server import Server, run, shop_server

from perdure.config.loader import parse
from perdure.core.roles import ROLES
from perdure.serve.http.app import ROUTES
from perdure.serve.http.openapi import ANYWHERE, route_errors

PAGE = (ROOT / "docs" / "http.md").read_text()
SECURITY = (ROOT / "docs" / "security.md").read_text()


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with shop_server(tmp_path) as one:
        yield one


def parked(server: Server, session: str) -> dict[str, str]:
    done = run(server.folder, "run", "shop", "Go", "-s", session, "--app", "app:rt")
    assert done.returncode == 8, done.stderr
    found = server.http().get("/pending", params={"sessionID": session}).json()["pending"]
    return {one["kind"]: one["id"] for one in found}


def shell(server: Server, command: str, **env: str) -> Any:
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=server.folder,
        env={**os.environ, "URL": server.url, **env},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def test_the_commands_of_the_page_work(server: Server) -> None:
    ids, ci = parked(server, "one"), parked(server, "two")
    names = {"CALL": ids["tool"], "APPROVAL": ids["approval"], "QUESTION": ids["question"]}
    start, ready, complete, from_ci, decide, inspect = blocks(PAGE, "sh")
    assert start == "perdure serve --app shop:rt\n"
    assert ready == f"{start.strip()} &\n{start.strip()} --wait-ready\n"
    for command in (complete + decide + inspect).splitlines():
        told = json.loads(shell(server, command, **names))
        assert "error" not in told or told["error"] is None, (command, told)
    said = shell(server, "make_preview() { true; }\n" + from_ci, CI_CALL=ci["tool"])
    assert json.loads(said) == {"success": True, "sessionID": "two"}
    said = shell(server, from_ci, CI_CALL=ci["tool"])  # no such command: the build fails
    assert json.loads(said)["code"] == "ALREADY_DECIDED"
    client = server.http()
    while (session := client.get("/sessions/one").json())["state"] != "completed":
        assert session["state"] in ("running", "waiting", "pending")
    assert session["output"] == TURNS[-1]["text"]


async def test_another_service_completes_a_call(server: Server) -> None:
    call = parked(server, "one")["tool"]
    program, _ = blocks(PAGE, "python")
    module: dict[str, Any] = {"SERVER_URL": server.url, "TOKEN": None}
    exec(compile(program, "http.md", "exec"), module)  # noqa: S102 - our own page
    await module["built"](call, "https://preview.example")
    record = server.http().get(f"/pending/{call}").json()
    assert record["result"]["title"] == "Deployed"


async def test_the_application_of_the_page_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, program = blocks(PAGE, "python")
    module = types.ModuleType("of_the_page")
    monkeypatch.setitem(sys.modules, "of_the_page", module)
    exec(compile(program, "http.md", "exec"), module.__dict__)  # noqa: S102 - our own page
    transport = httpx2.ASGITransport(app=module.app)
    headers = {"Authorization": "Bearer sesame"}
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://mine", headers=headers
    ) as client:
        closed = await client.get("/agents/agents")
        assert closed.json()["code"] == "NOT_OPEN"
        async with module.rt:
            opened = await client.get("/agents/agents")
            ours = await client.post("/agents/pending/p_none/approve", json={"by": "ops"})
            own = await client.post("/orders/p_none/approve")
    assert [one["name"] for one in opened.json()["agents"]] == ["support"]
    assert (own.status_code, own.json()) == (ours.status_code, ours.json())
    assert own.json()["code"] == "PENDING_NOT_FOUND"


def test_the_configurations_of_the_pages_are_right(tmp_path: Path) -> None:
    secrets = {f"{name}_TOKEN": f"{name}-0451" for name in ("OPS", "CI", "SLACK")}
    (in_http,), (in_security,) = blocks(PAGE, "yaml"), blocks(SECURITY, "yaml")
    for text in (in_http, in_security):
        (tmp_path / "perdure.yaml").write_text(text)
        config = parse(tmp_path / "perdure.yaml", secrets)
        assert config.server.tokens


def test_every_role_is_on_the_page_and_every_status_too() -> None:
    assert re.findall(r"^\| ([a-z]+) \|", SECURITY, re.MULTILINE)[1:] == list(ROLES)
    told = set(re.findall(r"^\| (\d{3}) \|", PAGE, re.MULTILINE))
    documented = {str(status) for route in ROUTES for status in (*route_errors(route), *ANYWHERE)}
    refusals = {status for status in documented if status.startswith(("4", "5"))} - {"500"}
    assert told == refusals | {"408"}  # which the connection answers, before any route


@pytest.mark.parametrize("page", [PAGE, SECURITY])
def test_every_link_leads_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page):
        assert (ROOT / "docs" / target).exists(), target
