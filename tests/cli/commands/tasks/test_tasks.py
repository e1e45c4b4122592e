"""`perdure tasks …`, on a store here and on a server."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.server import CLI, Server, around

from perdure.cli.commands.tasks.group import tasks
from perdure.cli.root import cli

CONFIG = """
tasks:
  root: ./work
  hooks:
    - {on: before_task_start, use: "policy:check", priority: 5, veto: true}
"""
POLICY = """
def check(task_id, agent_id):
    if agent_id == "mallory":
        raise PermissionError("mallory may not work here")
"""


class Project:
    """Commands in a folder, local or on its server."""

    def __init__(self, folder: Path, server: str | None) -> None:
        self.folder = folder
        self.options = [] if server is None else ["--server", server]

    def run(self, *words: str, code: int = 0) -> Any:
        result = CliRunner().invoke(cli, ["tasks", *words, *self.options, "--json"])
        assert result.exit_code == code, result.output
        return json.loads(result.stdout or result.stderr)

    def text(self, *words: str) -> str:
        result = CliRunner().invoke(cli, ["tasks", *words, *self.options])
        assert result.exit_code == 0, result.output
        return result.output


@pytest.fixture(params=["local", "server"])
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: Any) -> Any:
    (tmp_path / "perdure.yaml").write_text(CONFIG)
    (tmp_path / "policy.py").write_text(POLICY)
    if request.param == "local":
        monkeypatch.chdir(tmp_path)
        yield Project(tmp_path, None)
        return
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    server = Server(tmp_path).start()
    try:
        yield Project(tmp_path, server.url)
    finally:
        server.stop()


def test_a_task_lives_on_the_command_line(project: Project) -> None:
    """S3.2, S3.4, S3.5, S3.9, S3.10, S3.11, S3.12, S3.69"""
    created = project.run(
        "create", "Fix it", "--id", "fix", "--owner", "ana", "--metadata", '{"p": 1}'
    )
    assert created["status"] == "pending"
    refused = project.run("attach", "fix", "mallory", code=5)
    assert refused["code"] == "HOOK_VETO"
    assert "mallory may not work here" in refused["error"]
    assert project.run("attach", "fix", "coder")["status"] == "running"
    assert project.run("detach", "fix", "nobody")["detached"] is False
    assert project.run("list", "--owner", "ana", "--status", "running")["count"] == 1
    workspace = project.folder / "work/fix/workspace"
    (workspace / "a.txt").write_text("good")
    taken = project.run("checkpoint", "fix", "-m", "before")
    (workspace / "a.txt").write_text("bad")
    assert project.run("diff", "fix", taken["checkpointID"])["changed"] == ["a.txt"]
    restored = project.run("restore", "fix", taken["checkpointID"])
    assert (workspace / "a.txt").read_text() == "good"
    project.run("restore", "fix", restored["savedAs"], "a.txt")
    assert (workspace / "a.txt").read_text() == "bad"
    assert len(project.run("checkpoints", "fix")["checkpoints"]) == 3
    assert project.run("fail", "fix", "broken")["metadata"] == {"p": 1, "error": "broken"}
    assert project.run("cancel", "fix", code=5)["error"] == "Cannot cancel task with status: failed"
    levels = [line["level"] for line in project.run("logs", "fix", "--level", "error")["logs"]]
    assert levels == ["error"]
    assert project.run("decisions", "fix")["decisions"] == []
    assert project.run("delete", "fix", code=2)["code"] == "NOT_CONFIRMED"
    assert project.run("delete", "fix", "--yes")["taskID"] == "fix"
    assert project.run("show", "fix", code=3)["code"] == "TASK_NOT_FOUND"


def test_a_workspace_that_cannot_be_saved_is_moved_aside_and_can_be_removed(
    project: Project,
) -> None:
    """S3.49"""
    project.run("create", "n", "--id", "t")
    workspace = project.folder / "work/t/workspace"
    checkpoint = project.run("checkpoint", "t")["checkpointID"]
    workspace.joinpath(*["d"] * 101).mkdir(parents=True)
    shown = project.text("restore", "t", checkpoint)
    assert "could not be saved: the workspace is nested deeper than 100 folders" in shown
    assert "delete-checkpoint t replaced" in " ".join(shown.split())
    workspace.joinpath(*["d"] * 101).mkdir(parents=True)
    restored = project.run("restore", "t", checkpoint)
    assert restored["savedAs"] is None
    assert "nested deeper" in restored["problem"]
    assert (workspace.parent / restored["keptAs"] / "d").is_dir()
    assert project.run("delete-checkpoint", "t", "replaced", "--yes")["checkpointID"] == "replaced"
    assert not list(workspace.parent.glob("replaced*"))


def test_a_checkpoint_is_verified_exported_imported_and_deleted(project: Project) -> None:
    """S3.50: with any task, on any machine."""
    for name in ("a", "b"):
        project.run("create", "n", "--id", name)
    (project.folder / "work/a/workspace/file").write_bytes(b"content\x00")
    taken = project.run("checkpoint", "a", "-m", "good")["checkpointID"]
    assert project.run("verify", "a", taken)["ok"] is True
    exported = project.run("export", "a", taken, "a.tar.gz")
    assert (exported["taskID"], exported["checkpointID"]) == ("a", taken)
    assert exported["bytes"] == Path("a.tar.gz").stat().st_size > 0
    assert project.run("export", "a", taken, "a.tar.gz", code=2)["code"] == "FILE_EXISTS"
    imported = project.run("import", "b", "a.tar.gz")
    assert (imported["description"], imported["files"]) == ("good", 3)
    project.run("restore", "b", imported["checkpointID"])
    assert (project.folder / "work/b/workspace/file").read_bytes() == b"content\x00"
    assert project.run("delete-checkpoint", "a", taken, code=2)["code"] == "NOT_CONFIRMED"
    assert project.run("delete-checkpoint", "a", taken, "--yes")["checkpointID"] == taken
    assert project.run("checkpoints", "a")["checkpoints"] == []
    assert not list((project.folder / "work/a/checkpoints/objects").glob("*/*"))


def test_a_bad_file_is_not_imported_and_a_failed_export_leaves_no_file(project: Project) -> None:
    project.run("create", "n", "--id", "t")
    taken = project.run("checkpoint", "t")["checkpointID"]
    Path("bad").write_bytes(b"not an archive")
    assert project.run("import", "t", "bad", code=2)["code"] == "CHECKPOINT_INVALID"
    assert project.run("import", "t", "missing", code=2)["code"] == "FILE_UNREADABLE"
    for command in (["export", "t", "cp_x", "out"], ["verify", "t", "cp_x"]):
        assert project.run(*command, code=3)["code"] == "CHECKPOINT_NOT_FOUND"
    assert not Path("out").exists()
    next((project.folder / "work/t/checkpoints/objects").glob("*/*")).unlink()
    assert project.run("verify", "t", taken, code=1)["ok"] is False
    damaged = 1 if project.options else 7
    assert project.run("export", "t", taken, "out", code=damaged)["code"] == "CHECKPOINT_DAMAGED"
    assert not Path("out").exists()
    assert len(project.run("checkpoints", "t")["checkpoints"]) == 1


def test_a_task_is_created_in_the_database_of_the_folder(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(cli, ["tasks", "create", "n"])
    assert refused.exit_code == 2
    assert "perdure init" in refused.output
    named = ["tasks", "create", "n", "--id", "a", "--store", "sqlite:///perdure.db"]
    assert CliRunner().invoke(cli, named).exit_code == 0
    assert CliRunner().invoke(cli, ["tasks", "create", "n", "--id", "b"]).exit_code == 0
    assert (tmp_path / "perdure.db.tasks/b/workspace").is_dir()


def test_texts_for_people(project: Project) -> None:
    project.text("create", "Fix it", "--id", "fix")
    assert "fix  sandbox  pending  Fix it  system" in project.text("list")
    project.text("start", "fix", "coder")
    assert "Task started" in project.text("logs", "fix")
    assert "No checkpoints found." in project.text("checkpoints", "fix")
    assert "No decisions found." in project.text("decisions", "fix")
    project.text("complete", "fix", "--message", "done")
    assert "completed" in project.text("show", "fix")


@pytest.mark.parametrize("project", ["local"], indirect=True)
def test_bad_words_name_what_to_do(project: Project) -> None:
    """S3.3, S3.9"""
    assert project.run("create", " ", code=2)["code"] == "TASK_CREATE_FAILED"
    assert project.run("create", "x", "--id", "../x", code=2)["code"] == "TASK_CREATE_FAILED"
    project.run("create", "x", "--id", "t")
    assert project.run("create", "x", "--id", "t", code=5)["code"] == "TASK_CREATE_FAILED"
    assert project.run("list", "--offset", "-1", code=2)["code"] == "INVALID_REQUEST"
    assert project.run("list", "--status", "lost", code=2)["code"] == "USAGE"
    assert project.run("restore", "t", "cp_none", code=3)["code"] == "CHECKPOINT_NOT_FOUND"


@pytest.mark.parametrize("project", ["local"], indirect=True)
@pytest.mark.parametrize(
    "hook, text",
    [
        ("{on: before_task_start, use: 'missing:check'}", "missing"),
        ("{on: before_task_start, use: 'policy:nothing'}", "nothing"),
        ("{on: on_start, use: 'policy:check'}", "before_task_start"),
        ("{on: after_task_start, use: 'policy:check', veto: true}", "veto"),
        ("{on: before_task_start}", "use"),
    ],
)
def test_a_hook_that_does_not_exist_is_named_with_its_line(
    project: Project, hook: str, text: str
) -> None:
    """S3.67"""
    (project.folder / "perdure.yaml").write_text(f"tasks:\n  hooks:\n    - {hook}\n")
    refused = project.run("list", code=2)
    assert text in refused["error"] + refused["hint"]
    assert "perdure.yaml:3" in refused["error"] + json.dumps(refused["details"])


@pytest.mark.parametrize("project", ["local"], indirect=True)
def test_doctor_reports_an_edited_file_and_a_damaged_checkpoint(project: Project) -> None:
    project.run("create", "x", "--id", "t")
    checkpoint = project.run("checkpoint", "t")["checkpointID"]
    folder = project.folder / "work/t"

    def codes(*words: str) -> list[str]:
        result = CliRunner().invoke(cli, ["doctor", "--json", *words])
        return [c["code"] for c in json.loads(result.stdout)["findings"] if c["severity"] != "ok"]

    assert codes() == []
    state = (folder / "state.json").read_text()
    (folder / "state.json").write_text(state.replace("pending", "running"))
    assert codes() == ["TASK_FILE_EDITED"]
    (folder / "state.json").write_text("")
    assert codes() == ["TASK_FILE_EDITED"]
    (folder / "state.json").write_text(json.dumps(json.loads(state), sort_keys=True))
    assert codes() == []
    (folder / "logs.jsonl").write_text("notes\n")
    manifest = folder / f"checkpoints/{checkpoint}.json"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    assert codes() == ["TASK_FILE_EDITED", "CHECKPOINT_DAMAGED"]


@pytest.mark.parametrize("project", ["local"], indirect=True)
def test_copies_and_backups_carry_tasks_and_say_that_workspaces_stay(project: Project) -> None:
    """C5"""
    project.run("create", "x", "--id", "t")
    project.run("attach", "t", "a")
    run = CliRunner()
    backup = run.invoke(cli, ["db", "backup", "copy.db"])
    assert "workspaces and checkpoints stay where they are" in backup.output
    copied = run.invoke(cli, ["db", "copy", "sqlite:///perdure.db", "sqlite:///other.db"])
    assert "1 task " in copied.output, copied.output
    for name in ("copy.db", "other.db"):
        store = f"{{backend: sql, sql: {{driver: sqlite, database: ./{name}}}}}"
        config = f"{CONFIG}session_stores:\n  main: {store}\n"
        (project.folder / "perdure.yaml").write_text(config)
        assert project.run("show", "t")["status"] == "running"
        assert len(project.run("logs", "t")["logs"]) == 2
    assert project.run("checkpoint", "t")["checkpointID"]
    (project.folder / "perdure.yaml").write_text("tasks: {root: ./other}\n")
    assert project.run("show", "t")["host"]
    assert project.run("checkpoint", "t", code=2)["code"] == "TASK_ELSEWHERE"


@pytest.mark.parametrize("project", ["local"], indirect=True)
def test_a_log_is_followed(project: Project) -> None:
    project.run("create", "x", "--id", "t")
    command = [*CLI, "tasks", "logs", "t", "-f", "--json"]
    with subprocess.Popen(
        command, cwd=project.folder, env=around(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["lines"][0]["message"] == "Task created"
        project.run("start", "t", "a")
        assert json.loads(process.stdout.readline())["lines"][0]["message"] == "Task started"
        process.terminate()


def test_help_groups_the_commands_by_the_kind_of_task() -> None:
    shown = CliRunner().invoke(cli, ["tasks", "--help"]).stdout
    _, every, background, sandbox = re.split(r"(?m)^(?:Tasks of|Background|Sandbox) .*:$", shown)
    names = [re.findall(r"(?m)^  ([a-z-]+)", text) for text in (every, background, sandbox)]
    assert names[:2] == [["list", "show", "cancel", "delete"], ["output", "resume", "clear"]]
    assert {"create", "exec", "checkpoint", "put"} < set(names[2])
    assert sorted(name for section in names for name in section) == sorted(tasks.contents)
