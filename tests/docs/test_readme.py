"""The README tells the truth: its programs are files that run, and its commands work."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.servers.ports import free_port

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def run(folder: Path, *command: str, code: int = 0) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "examples", tmp_path / "examples"))


def test_the_programs_in_the_readme_are_the_examples() -> None:
    shown = re.findall(r"<!-- (\S+) -->\n```python\n(.*?)```", README, re.DOTALL)
    assert len(shown) == 2
    for name, text in shown:
        assert (ROOT / name).read_text() == text


def test_the_commands_in_the_readme_lead_from_waiting_to_completed(examples: Path) -> None:
    (block,) = re.findall(r"```\ncd examples\n(.*?)```", README, re.DOTALL)
    commands = [shlex.split(line, comments=True) for line in block.splitlines()]
    printed = []
    for words in commands:
        ids = {}
        if {"APPROVAL_ID", "PARCEL_ID"} & set(words):
            listed = json.loads(
                run(examples, *["perdure", "--app", "refund:rt", "pending", "list", "--json"])
            )
            ids = {call["kind"]: call["id"] for call in listed["pending"]}
        named = {"APPROVAL_ID": ids.get("approval"), "PARCEL_ID": ids.get("tool")}
        printed.append(run(examples, *[named.get(word) or word for word in words]))
    assert printed[0].startswith("waiting")
    assert printed[-2].startswith("completed")
    assert "refunded 4000 cents" in printed[-1]


SHELL = """
up() { until curl -sf $URL/healthz > up.txt; do sleep 0.1; done; }
waiting() {  # the id of the call of a kind, once it waits
  until ID=$(curl -s "$URL/pending?kind=$1" | grep -o 'p_[0-9A-Z]*' | head -1) && [ -n "$ID" ]
  do sleep 0.1; done; echo $ID
}
trap 'kill -9 $(jobs -p)' EXIT
"""


def test_the_story_over_http_survives_its_kill(examples: Path) -> None:
    """G11"""
    (block,) = re.findall(r"```sh\n(perdure --app refund:rt serve.*?)```", README, re.DOTALL)
    port = str(free_port())
    script = [SHELL]
    for line in block.replace(" serve &", f" serve --port {port} > log.txt 2>&1 &").splitlines():
        script.append(line.replace("4747", port))
        if line.startswith("URL") or "kill" in line:
            script.append("up")
        if "/sessions " in line:
            script += ["PARCEL_ID=$(waiting tool)", "APPROVAL_ID=$(waiting approval)"]
    out = run(examples, "timeout", "60", "bash", "-c", "\n".join(script))
    *_, story = out.splitlines()[-1].partition('{"events":')
    told = json.loads('{"events":' + story)["events"]
    assert [one["type"] for one in told].count("agent_complete") == 1
    assert "collected at 14:02" in story
    assert story.count("refunded 4200 cents") == 1


def test_the_example_test_passes(examples: Path) -> None:
    (examples / "conftest.py").write_text(
        "import pytest\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    )
    options = ["-q", "-p", "no:cacheprovider", "-o", "anyio_mode=auto", "-c", os.devnull]
    out = run(examples, sys.executable, "-m", "pytest", *options, "test_refund.py")
    assert "2 passed" in out


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/guide.md",
        "docs/configuration.md",
        "docs/human-in-the-loop.md",
        "docs/mcp-tools.md",
        "docs/telemetry.md",
    ],
)
def test_every_link_and_named_test_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text) + re.findall(r"`(tests/[^`]+)`", text):
        assert ((ROOT / page).parent / target).exists(), target
