"""Pauses through a server that is killed and started again, and answers that are none."""

import json
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.stories.test_hitl_modes import STORE, TOOLS
from tests.support.server import Server

YAML = f"""
{STORE}
agents:
  shop: {{llm: "scripted:turns.json", session_store: main-db, tools: [shop:refund]}}
"""
PAUSES = 3


@pytest.fixture
def project(tmp_path: Path) -> Path:
    turns: list[Any] = [
        {"calls": [{"tool": "refund", "args": {"cents": n}}]} for n in range(PAUSES)
    ]
    (tmp_path / "turns.json").write_text(json.dumps([*turns, {"text": "All done."}]), "utf-8")
    (tmp_path / "shop.py").write_text(TOOLS, "utf-8")
    (tmp_path / "perdure.yaml").write_text(YAML, "utf-8")
    return tmp_path


def resting(client: httpx2.Client) -> dict[str, Any]:
    """The session, once nobody drives it and nobody should."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        session: dict[str, Any] = client.get("/sessions/s").json()
        if session["driver"] is None and session["state"] in ("waiting", "completed", "failed"):
            return session
    raise AssertionError("it never rests")


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_three_pauses_of_one_run_survive_a_server_that_is_killed_between_all(
    project: Path, store: str, request: pytest.FixtureRequest
) -> None:
    """S4.30 S4.51: the state is visible in storage, and the task id stays the same."""
    if store == "postgres":
        sql = f'driver: postgres, database: "{request.getfixturevalue("postgres_url")}"'
        text = YAML.replace("driver: sqlite, database: ./perdure.db", sql)
        (project / "perdure.yaml").write_text(text, "utf-8")
    with Server(project, "--config", "perdure.yaml", PERDURE_LEASE="2s") as server:
        body = {"agent": "shop", "sessionID": "s", "message": "Go"}
        first = server.http().post("/sessions", json=body).json()
        task = first["taskID"]
        for number in range(PAUSES):
            session = resting(server.http())
            (call,) = session["pending"]
            assert (session["taskID"], call["input"]) == (task, {"cents": number})
            server.kill()
            server.start()
            session = resting(server.http())
            assert [one["id"] for one in session["pending"]] == [call["id"]]
            answer = {"content": "yes", "taskID": task, "contextID": "s"}
            taken = server.http().post("/sessions/s/messages", json=answer)
            assert taken.is_success, taken.text
        done = resting(server.http())
        assert (done["state"], done["output"], done["taskID"]) == ("completed", "All done.", task)
    effects = (project / "effects.log").read_text("utf-8").splitlines()
    assert effects == [f"refund {number}" for number in range(PAUSES)]


HOSTILE = ["do not approve", "disapprove", "approve?", "", "approve " * 130_000, "yes\x00", "ye s"]


def test_hostile_decision_texts_never_approve(project: Path) -> None:
    """S4.23"""
    with Server(project, "--config", "perdure.yaml") as server:
        client = server.http()
        body = {"agent": "shop", "sessionID": "s", "message": "Go"}
        client.post("/sessions", json=body)
        task = resting(client)["taskID"]
        for text in HOSTILE:
            answer = {"content": text, "taskID": task, "contextID": "s"}
            client.post("/sessions/s/messages", json=answer)
            session = resting(client)
            assert (session["state"], len(session["pending"])) == ("waiting", 1), text[:40]
    assert not (project / "effects.log").exists()
