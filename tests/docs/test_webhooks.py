"""The page about webhooks tells the truth: its commands work, in and out."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import ROOT
from tests.support.receiver import Receiver, receiving
from tests.support.server import Server

from perdure.core.webhooks.deliveries import BACK_OFF_S, LIMIT_MS, MAX_REFUSALS, TYPES
from perdure.core.webhooks.signatures import derive_secret, verify
from perdure.views.durations import format_ms

PAGE = (ROOT / "docs" / "webhooks.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
(YAML,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
SECRETS = {"PERDURE_WEBHOOK_SECRET": "the-server-s", "OPS_SECRET": "the-receiver-s"}

SHOP = '''
from perdure import PendingCall, tool

@tool(deferred=True)
def deploy(branch: str, call: PendingCall) -> str:
    """Deploy."""
    return branch
'''
AGENTS = """
agents:
  shop: {llm: "scripted:turns.json", tools: ["shop:deploy"]}
"""
CALLS = [{"tool": "deploy", "args": {"branch": name}} for name in "abc"]


def shell(folder: Path, command: str, **env: str) -> str:
    done = subprocess.run(
        ["sh", "-ec", command],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            **SECRETS,
            **env,
        },
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def received(receiver: Receiver, kind: str) -> list[Any]:
    """Until somebody is told that; the server sends when it can."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = [one for one in receiver.got if json.loads(one.body)["type"] == kind]
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"nobody was told {kind}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "turns.json").write_text(json.dumps([{"calls": CALLS}, {"text": "Done."}]))
    (tmp_path / "perdure.yaml").write_text(YAML + AGENTS)
    return tmp_path


def test_every_command_of_the_page_works(folder: Path) -> None:
    """S0.55 S0.59 S0.60"""
    assert len(BLOCKS) == 5
    signing, plain, standard, checking, listing = BLOCKS
    with receiving() as receiver:
        options = {**SECRETS, "OPS_URL": receiver.url}
        with Server(folder, "--config", "perdure.yaml", **options) as server:
            client = server.http()
            client.post("/sessions", json={"agent": "shop", "message": "Go", "sessionID": "s"})
            deadline = time.monotonic() + 20
            while len(calls := client.get("/pending").json()["pending"]) < 3:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            ids = dict(zip(("FIRST", "SECOND", "THIRD"), (c["id"] for c in calls), strict=True))
            own = derive_secret(SECRETS["PERDURE_WEBHOOK_SECRET"], ids["SECOND"])
            more = {"SERVER": server.url, "CALLBACK_SECRET": own, **options, **ids}
            for block in (signing, plain, standard):
                assert json.loads(shell(folder, block, **more))["success"] is True
            (told,) = received(receiver, "session.completed")
            assert verify(told.headers, told.body, ["the-receiver-s"], time.time_ns() // 10**6).ok
            (folder / "received.body").write_bytes(told.body)
            checked = shell(folder, checking, **more).strip()
            assert told.headers["x-webhook-signature"] == f"sha256={checked}"
            kinds = {json.loads(one.body)["type"] for one in receiver.got}
            assert kinds == {"pending.created", "pending.decided", "session.completed"}
            said = shell(folder, listing, DELIVERY=told.id, **more)
            assert '"status":"waiting"' in said.splitlines()[-1]
    text = server.log() + said + str(receiver.got[0].body)
    assert not any(secret in text for secret in SECRETS.values())


def test_the_page_names_every_occasion_and_the_pauses_that_there_are() -> None:
    for occasion, kind in TYPES.items():
        assert f"`{occasion}`" in PAGE
        assert f"`{kind}`" in PAGE
    pauses = [format_ms(seconds * 1000) for seconds in BACK_OFF_S]
    shown = re.findall(r"(\d+) (s|min|h)\b", PAGE.partition("is tried\n")[2].partition("each")[0])
    assert [f"{n}{'m' if unit == 'min' else unit}" for n, unit in shown] == [
        "24h" if pause == "1d" else pause for pause in pauses
    ]
    assert (MAX_REFUSALS, LIMIT_MS) == (4, 3 * 86_400_000)


def test_every_link_of_the_page_leads_somewhere_and_the_configuration_leads_to_it() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
    assert "(webhooks.md)" in (ROOT / "docs" / "configuration.md").read_text()
