"""After a deploy, doctor, /doctor, /health and agents check name the same calls, and what helps."""

import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from click.testing import CliRunner, Result
from tests.support.findings import code_of, problem_of
from tests.support.http_shop import TOKENS
from tests.support.steps import request_of

from perdure import Runtime, asgi
from perdure.cli.root import cli
from perdure.config.load_object import load_object

PROGRAM = """
from perdure import Agent, Runtime, tool
from perdure.testing import ScriptedModel

def model(name, **args):
    return ScriptedModel([{"calls": [{"tool": name, "args": args}]}, {"text": "Done."}])
"""
BEFORE = '''
@tool(requires_approval=True)
def refund(order: int) -> str:
    """Refund."""
    return "refunded"

@tool(requires_approval=True)
def pay(cents: str) -> str:
    """Pay."""
    return "paid"

rt = Runtime("sqlite:///shop.db", agents=[
    Agent("clerk", model=model("refund", order=1), tools=[refund]),
    Agent("payer", model=model("pay", cents="many"), tools=[pay]),
    Agent("fired", model=model("refund", order=2), tools=[refund]),
])
'''
AFTER = '''
@tool(requires_approval=True)
def give_back(order: int) -> str:
    """Refund."""
    return "refunded"

@tool(requires_approval=True)
def pay(cents: int) -> str:
    """Pay."""
    return "paid"

rt = Runtime("sqlite:///shop.db", agents=[
    Agent("clerk", model=model("give_back", order=1), tools=[give_back]),
    Agent("payer", model=model("pay", cents=1), tools=[pay]),
])
'''
SESSIONS = {"renamed": "clerk", "approved": "clerk", "changed": "payer", "removed": "fired"}
CODES = {
    "renamed": "TOOL_MISSING",
    "approved": "TOOL_MISSING",
    "changed": "ARGS_INVALID",
    "removed": "AGENT_UNKNOWN",
}
OF_CODE = frozenset(CODES.values())


def run(*words: str) -> Result:
    """Run a command with the program, as in a new process."""
    sys.modules.pop("shop", None)
    return CliRunner().invoke(cli, [*words, "--app", "shop:rt"])


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four sessions that wait, and a program that does not fit them any more."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(PROGRAM + BEFORE)
    for session, agent in SESSIONS.items():
        assert "is paused and saved" in run("run", agent, "Go", "-s", session).output
    calls = {call["sessionID"]: call["id"] for call in _json("pending", "list")["pending"]}
    assert run("approve", calls["approved"], "--no-run").exit_code == 0
    (tmp_path / "shop.py").write_text(PROGRAM + AFTER)
    return tmp_path


def _json(*words: str) -> Any:
    result = run(*words, "--json")
    assert result.stdout, result.stderr
    return json.loads(result.stdout)


def about_code(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [finding for finding in findings if finding["code"] in OF_CODE]


def new_runtime(folder: Path) -> Runtime:
    sys.modules.pop("shop", None)
    runtime: Runtime = load_object("shop:rt", folder)
    return runtime


def asked(folder: Path, *request: Any, accept: str = "application/json") -> httpx2.Response:
    """Return what a server with the program, which drives nothing, responds to a request."""

    async def ask() -> httpx2.Response:
        async with new_runtime(folder) as rt:
            transport = httpx2.ASGITransport(app=asgi(rt, auth=TOKENS))
            headers = {"Authorization": "Bearer admin-token", "Accept": accept}
            async with httpx2.AsyncClient(
                transport=transport, base_url="http://shop", headers=headers
            ) as client:
                method, path, *body = request
                return await client.request(method, path, json=body[0] if body else None)

    return anyio.run(ask)


def served(folder: Path, path: str, accept: str = "application/json") -> httpx2.Response:
    """Return what a server with the program shows."""
    return asked(folder, "GET", path, accept=accept)


def sessions_of(findings: list[dict[str, Any]]) -> dict[str, str]:
    return {
        name: finding["code"]
        for finding in findings
        for name in SESSIONS
        if f"session {name}" in finding["text"]
    }


def test_after_a_deploy_every_surface_names_the_same_calls(deployed: Path) -> None:
    """S4.33"""
    checked = _json("agents", "check")
    doctor = _json("doctor")
    served_doctor = served(deployed, "/doctor")
    assert sessions_of(checked["findings"]) == CODES
    assert about_code(doctor["findings"]) == checked["findings"]
    assert about_code(served_doctor.json()["findings"]) == checked["findings"]
    oks = [report["ok"] for report in (doctor, checked, served_doctor.json())]
    assert oks == [False, False, False]
    assert {run("doctor").exit_code, run("agents", "check").exit_code} == {1}
    listed = {call["sessionID"]: call for call in _json("pending", "list")["pending"]}
    assert problem_of(listed.pop("removed")) is None  # a worker elsewhere may have its agent
    for name, call in listed.items():
        assert code_of(call) == CODES[name]
        assert call["findings"][0] in checked["findings"]


def test_the_first_card_of_the_health_page_is_the_worst_finding(deployed: Path) -> None:
    worst = _json("agents", "check")["findings"][0]
    page = served(deployed, "/health", "text/html")
    assert page.status_code == 200, page.text
    card = page.text.index('id="worst"')
    assert card < page.text.index('id="ready"')
    assert worst["text"].split("\n")[0].split("(")[0][1:] in page.text[card:]


def restored(folder: Path, findings: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the steps of findings, each with the store as it was at first."""
    shutil.copy(folder / "shop.db", folder / "kept.db")
    for finding in findings:
        for step in finding["steps"]:
            for file in folder.glob("shop.db*"):
                file.unlink()
            shutil.copy(folder / "kept.db", folder / "shop.db")
            yield {**step, "subject": finding["subject"]}


def test_no_step_that_is_named_after_a_deploy_is_refused(deployed: Path) -> None:
    """Each step starts from the same store."""
    labels = set[str]()
    for step in restored(deployed, _json("agents", "check")["findings"]):
        labels.add(step["label"])
        words = shlex.split(step["command"].replace("cents=…", "cents=3").replace("…", "no"))
        done = run(*words[1:], *(["--no-run"] if words[1] in ("approve", "deny") else []))
        assert done.exit_code == 0, (step, done.output)
    assert labels >= {"edit", "deny", "respond", "cancel"}


def test_no_request_that_is_named_after_a_deploy_is_refused(deployed: Path) -> None:
    """Each request starts from the same store."""
    labels = set[str]()
    for step in restored(deployed, served(deployed, "/doctor").json()["findings"]):
        request = request_of(step, {"cents": 3})
        if request is not None:
            labels.add(step["label"])
            answer = asked(deployed, *request)
            assert answer.is_success, (step, answer.text)
    assert labels >= {"edit", "deny", "respond", "cancel"}


def test_nothing_that_is_refused_is_offered_after_a_deploy(deployed: Path) -> None:
    for call in _json("pending", "list")["pending"]:
        if call["sessionID"] in ("renamed", "changed"):
            assert "approve" not in call["can"]
            assert run("approve", call["id"], "--no-run").exit_code != 0
            assert "approve" not in [step["label"] for step in call["findings"][0]["steps"]]
