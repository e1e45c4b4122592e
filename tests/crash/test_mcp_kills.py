"""A story told through MCP, killed after each of its durable writes."""

import json
import subprocess
import sys
from typing import Any

from tests.support.mcp_client import open_folder, unconfined
from tests.support.paths import ROOT


def test_what_a_client_was_told_is_true_after_a_kill_at_any_durable_write() -> None:
    """G1, G3, S3.8, S3.12: create, attach, execute, cancel and delete."""
    with open_folder() as folder:
        command = [sys.executable, "-m", "tests.crash.mcp_program", str(folder)]
        done = subprocess.run(
            [*command, json.dumps(unconfined(folder))],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    views = json.loads(done.stdout)
    assert len(views) > 6
    for view in views:
        assert "failed" not in view, done.stderr[-3000:]
        check(view)
    assert "delete_task" in views[-1]["acks"]
    assert any(view["handle"].get("status") == "completed" for view in views if "handle" in view)


def check(view: dict[str, Any]) -> None:
    acks, status = view["acks"], view["status"]
    exists = status["success"]
    assert exists or status["error"]["code"] == "TASK_NOT_FOUND", view
    if "create_task_sandbox" in acks and "cancel_task" not in acks:
        assert exists, view
    if "delete_task" in acks:
        assert not exists, view
    if exists and "attach_agent_to_task" in acks:
        assert status["status"] in ("running", "cancelled"), view
    if exists and "cancel_task" in acks:
        assert status["status"] == "cancelled", view
    assert view["effects"] <= 1, view
    if "handle" in view and exists:
        handle = view["handle"]
        assert handle["status"] == "completed", view
        reason = handle["result"]["structuredContent"]["reason"]
        assert reason in ("exited", "interrupted"), view
        assert view["effects"] == 1 or reason == "interrupted", view
    assert view["deleted"]["success"] is exists, view
    assert view["left"] == 0, view
