"""`perdure tasks` for background agents: from launch to a follow-up on the next day."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.support.server import Server

from perdure.cli.root import cli

PROGRAM = (Path(__file__).parents[4] / "examples" / "researchers.py").read_text("utf-8")
Invoke = Callable[..., Result]


@pytest.fixture
def perdure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run a command on the researchers; their lead has asked all of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("perdure.cli.commands.continuation.CLAIM_S", 0.05)  # no worker runs here
    (tmp_path / "researchers.py").write_text(PROGRAM, "utf-8")

    def invoke(*words: str) -> Result:
        return CliRunner().invoke(cli, ["--app", "researchers:rt", *words])

    ran = invoke("run", "lead", "Write about tides", "-s", "report")
    assert ran.exit_code == 0, ran.output
    return invoke


def listed(perdure: Invoke, *options: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(perdure("tasks", "list", "--json", *options).stdout)[
        "tasks"
    ]
    return rows


def test_background_agents_are_listed_shown_and_read(perdure: Invoke) -> None:
    """S1.15, S1.33"""
    table = perdure("tasks", "list").output.splitlines()
    assert table[0].split() == ["ID", "KIND", "STATUS", "NAME", "OWNER", "AGENTS", "UPDATED"]
    assert len(table) == 4
    tasks = listed(perdure, "--parent", "report", "--kind", "background")
    assert {task["status"] for task in tasks} == {"completed"}
    task_id = tasks[0]["id"]
    shown = perdure("tasks", "show", task_id[:-2]).output  # a unique prefix is enough
    assert f"id: {task_id}" in shown
    assert "output: Here is what I found." in shown
    assert f"tasks resume {task_id} MESSAGE" in shown
    assert perdure("tasks", "output", task_id).output == "Here is what I found.\n"
    last = json.loads(perdure("tasks", "show", "@last", "--json").stdout)
    assert last["kind"] == "background"


def test_a_follow_up_is_sent_and_answered_here(perdure: Invoke) -> None:
    """S1.5, S1.15, S1.18, S1.21"""
    first, second, _ = (task["id"] for task in listed(perdure))
    answer = perdure("tasks", "resume", first, "Tell me more.", "--block")
    assert (answer.exit_code, answer.stdout) == (0, "And here is more.\n")
    sent = perdure("tasks", "resume", second, "Tell me more.")
    assert sent.exit_code == 0, sent.output
    assert f"sent follow-up 1 to {second} (researcher)" in sent.output
    assert "And here is more." in sent.output  # no worker runs: the command drove it
    assert perdure("tasks", "output", second).output == "And here is more.\n"
    assert "completed (resumed)" in perdure("tasks", "list").output


def test_the_output_of_a_deleted_session_is_told_to_be_gone(perdure: Invoke) -> None:
    """S1.11"""
    task = listed(perdure)[0]
    perdure("sessions", "delete", task["sessionID"], "--yes")
    answer = perdure("tasks", "output", task["id"])
    assert answer.exit_code == 1
    gone = f"Task {task['id']} has completed, and its output was deleted with its session."
    assert " ".join(answer.output.split()) == gone


def test_a_recorded_follow_up_is_refused_a_second_time_until_it_is_answered(
    perdure: Invoke,
) -> None:
    """S1.10, S1.19"""
    task_id = listed(perdure)[0]["id"]
    recorded = perdure("tasks", "resume", task_id, "More.", "--no-run")
    assert "A worker will continue the session" in recorded.output
    again = perdure("tasks", "resume", task_id, "More!")
    assert (again.exit_code, again.stdout) == (5, "")
    assert "Task is currently being resumed." in again.stderr
    running = perdure("tasks", "output", task_id)
    assert f"Task {task_id} is resumed. Wait for it:" in running.output
    assert perdure("tasks", "output", task_id, "--block").output == "And here is more.\n"


def test_background_agents_are_cancelled_cleared_and_deleted(perdure: Invoke) -> None:
    """S1.29, S1.32, S1.36"""
    first, second, _ = (task["id"] for task in listed(perdure))
    refused = perdure("tasks", "cancel", first)
    assert refused.exit_code == 5
    assert 'current status is "completed"' in refused.stderr
    perdure("tasks", "resume", first, "More.", "--no-run")
    assert perdure("tasks", "cancel", first).output == f"task {first} is cancelled\n"
    assert perdure("tasks", "output", first).exit_code == 1
    unconfirmed = perdure("tasks", "delete", second)
    assert (unconfirmed.exit_code, len(listed(perdure))) == (2, 3)
    assert perdure("tasks", "delete", second, "--yes").exit_code == 0
    assert perdure("tasks", "clear", "report").output == "cleared 2 tasks of session report\n"
    assert listed(perdure) == []
    missing = perdure("tasks", "show", first, "--json")
    assert missing.exit_code == 3
    assert json.loads(missing.stderr)["details"] == {"reason": "cleared"}


def test_a_verb_that_does_not_fit_the_kind_says_so(perdure: Invoke) -> None:
    perdure("tasks", "create", "shared work", "--id", "t")
    task_id = next(task["id"] for task in listed(perdure) if task["kind"] == "background")
    attached = perdure("tasks", "attach", task_id, "a")
    assert attached.exit_code == 5
    assert f"task {task_id} is a background agent" in attached.stderr
    resumed = perdure("tasks", "resume", "t", "More.")
    assert resumed.exit_code == 5
    assert "task t is a shared task" in resumed.stderr
    ambiguous = perdure("tasks", "show", "bg_")
    assert ambiguous.exit_code == 2
    assert "matches 3 tasks" in ambiguous.stderr
    assert "Task not found: nothing" in perdure("tasks", "show", "nothing").stderr


def test_every_verb_works_on_a_server(perdure: Invoke, tmp_path: Path) -> None:
    """S1.33: the server is another process, started after the researchers had ended."""
    with Server(tmp_path, "--app", "researchers:rt") as server:

        def remote(*words: str) -> Result:
            return CliRunner().invoke(cli, ["tasks", *words, "--server", server.url])

        page = json.loads(remote("list", "--parent", "report", "--json").stdout)
        first, second, _ = (task["id"] for task in page["tasks"])
        assert page["count"] == 3
        assert "output: Here is what I found." in remote("show", first).output
        answer = remote("resume", first, "More.", "--block", "--timeout", "30s")
        assert (answer.exit_code, answer.stdout) == (0, "And here is more.\n")
        assert remote("resume", second, "More.").exit_code == 0
        waited = remote("output", second, "--block", "--timeout", "30s")
        assert waited.output == "And here is more.\n"
        assert "is a background agent" in remote("attach", second, "a").stderr
        assert remote("cancel", second).exit_code == 5
        assert remote("delete", second, "--yes").exit_code == 0
        assert remote("clear", "report").output == "cleared 2 tasks of session report\n"


SHOP = """
from perdure import Agent, Approval, Runtime, tool
from perdure.testing import ScriptedModel

@tool(requires_approval=Approval(by=["ana"]), redact=["card"])
def refund(cents: int, card: str) -> str:
    '''Refund.'''
    return "refunded"

turns = [{"calls": [{"tool": "refund", "args": {"cents": 5, "card": "4111"}}]}, {"text": "Done."}]
launch = {"tool": "background_task", "args": {"agent": "shop", "prompt": "Refund it"}}
shop = Agent("shop", model=ScriptedModel(turns), tools=[refund])
lead = Agent("lead", model=ScriptedModel([{"calls": [launch]}, {"text": "."}]), sub_agents=[shop])
rt = Runtime("sqlite:///shop.db", agents=[lead])
"""


def test_a_task_that_waits_for_a_person_says_who_decides_and_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.3"""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP, "utf-8")

    def perdure(*words: str) -> Result:
        return CliRunner().invoke(cli, ["--app", "shop:rt", *words])

    perdure("run", "lead", "Go", "-s", "s")
    (task,) = listed(perdure)
    (call,) = task["waitingFor"]
    assert (call["tool"], call["approvers"], task["status"]) == ("refund", ["ana"], "running")
    approve = f"perdure approve {call['pendingID']} --app shop:rt"
    table = perdure("tasks", "list").output
    assert f"{task['id']} waits for ana: approve refund (Run refund with" in table
    for words in (("list",), ("show", task["id"]), ("output", task["id"])):
        text = perdure("tasks", *words).output
        assert "waits for ana: approve refund" in text
        assert approve in text
        assert "4111" not in text
    assert json.loads(perdure("tasks", "output", task["id"], "--json").stdout)["task"][
        "waitingFor"
    ] == [call]
