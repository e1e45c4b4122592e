"""Type checkers agree that the public API has the types that users expect."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAMPLE = Path(__file__).with_name("sample.py")
IMPORTS = """
from perdure import Agent, Approval, PendingCall, Principal, Result, Runtime, tool
from perdure.client import Client
from perdure.testing import ScriptedModel
from perdure.views import Usage
async def wrong(rt: Runtime, client: Client, call: PendingCall, result: Result[str]) -> None:
    model = ScriptedModel([])
"""
WRONG = (
    'Agent("a", model=model, budget={"turn": 1})',
    'Agent("a", model=model, budget={"turns": "many"})',
    'Agent("a", model=model, compaction={"kep": 3})',
    'Agent("a", model=model, permissions={"denied": []})',
    'Agent("a", model=model, permissions={"deny": 5})',
    'Agent("a", model=model, background={"resume": True})',
    'Agent("a", model=model, hitl="maybe")',
    'Agent("a", model=model, on_expire="ignore")',
    'Agent("a", model=model, temperature=1)',
    'Runtime("memory:", recovery={"runing": "fail"})',
    'Runtime("memory:", recovery={"running": "stop"})',
    'Runtime("memory:", telemetry={"contents": True})',
    'Runtime("memory:", webhooks=[{"secret": "x"}])',
    'Runtime("memory:", webhooks=[{"url": "https://x.example", "on": ["never"]}])',
    'Runtime("memory:", prices={"acme:x": {"input": 1}})',
    'Runtime("memory:", tasks={"rooot": "./tasks"})',
    'Runtime("memory:", tasks={"limits": {"procs": 3}})',
    'Runtime("memory:", tasks={"network": "on"})',
    'await rt.decide({call: "yes"}, by="ana")',
    'await rt.decide([(call, "approve")], by="ana")',
    'await rt.decide({call: {"decision": "edit", "arg": {}}}, by="ana")',
    'await rt.decide({call: {"args": {}}}, by="ana")',
    'await client.decide({call.id: {"decision": "agree"}})',
    'await rt.session("s").run(decisions={call: "yes"})',
    'await client.session("s").run(decisions={call.id: True})',
    'await call.approve(arg={"cents": 1})',
    'Approval(votes="two")',
    'Approval(allow=["agree"])',
    'tool(print, requires_approval="yes")',
    'tool(print, approvers=["ana"])',
    'tool(print, on_crash="ignore")',
    'Principal("ana", "boss")',
    'result.usage["inputTokens"]',
    "result.stop",
    "Usage(inputTokens=3)",
    "await rt.approve()",
    "await rt.cancel(call)",
    "rt.task('bg_1')",
)


def program(name: str) -> str:
    """Return the path of a type checker; skips without it, and fails in CI."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is not None:
        return found
    if os.environ.get("CI") == "true":
        pytest.fail(f"{name} is not installed: pip install -e '.[dev]'")
    pytest.skip(f"TYPES NOT CHECKED: {name} is not installed; pip install -e '.[dev]'")


def check(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a type checker on this repository."""
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=540, check=False
    )


def test_mypy_accepts_uses_of_the_public_api() -> None:
    checked = check(program("mypy"), str(SAMPLE))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def pyright(folder: Path, file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pyright in strict mode on a file."""
    project = folder / "pyrightconfig.json"
    project.write_text(
        json.dumps(
            {
                "include": [str(file)],
                "extraPaths": [str(ROOT / "src")],
                "typeCheckingMode": "strict",
                "pythonVersion": "3.11",
            }
        )
    )
    command = [program("basedpyright"), "--project", str(project)]
    return check(*command, "--pythonpath", sys.executable, *options)


def test_pyright_accepts_uses_of_the_public_api(tmp_path: Path) -> None:
    checked = pyright(tmp_path, SAMPLE)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """A program with a wrong use of the API in each of its last lines."""
    file = tmp_path / "wrong.py"
    file.write_text(IMPORTS + "".join(f"    {line}\n" for line in WRONG))
    return file


def accepted(lines: set[int]) -> list[str]:
    """Return the wrong uses that are not among the lines with an error."""
    first = IMPORTS.count("\n") + 1
    return [line for number, line in enumerate(WRONG, first) if number not in lines]


def test_mypy_refuses_each_wrong_option(wrong: Path) -> None:
    checked = check(program("mypy"), "--no-error-summary", str(wrong))
    lines = {int(found) for found in re.findall(r"wrong\.py:(\d+): error", checked.stdout)}
    assert accepted(lines) == [], checked.stdout + checked.stderr
    assert min(lines) > IMPORTS.count("\n")


def test_pyright_refuses_each_wrong_option(tmp_path: Path, wrong: Path) -> None:
    checked = pyright(tmp_path, wrong, "--outputjson")
    found = json.loads(checked.stdout)["generalDiagnostics"]
    lines = {item["range"]["start"]["line"] + 1 for item in found if item["severity"] == "error"}
    assert accepted(lines) == [], checked.stdout + checked.stderr
    assert min(lines) > IMPORTS.count("\n")
