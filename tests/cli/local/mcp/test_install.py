"""Entries in the configurations of MCP clients: one is added, and nothing else changes."""

import contextlib
import json
import os
import pty
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.support.mcp_client import open_folder
from tests.support.mcp_stdio import INITIALIZE, INITIALIZED, started
from tests.support.sandboxes import require_bwrap

from perdure.cli.root import cli

CLIENTS = {
    "claude": (".claude.json", "mcpServers"),
    "opencode": (".config/opencode/opencode.json", "mcp"),
    "codex": (".codex/config.toml", "mcp_servers"),
}
EXISTING = {
    "claude": '{\n    "theme": "dark", "odd":  [1,2],\n    "mcpServers": {\n        "other": '
    '{"command": "x"}\n    },\n    "last": "ü"\n}\n',
    "opencode": '{"$schema":"https://opencode.ai/config.json","mcp":{}}',
    "codex": '# my settings\nmodel = "gpt"   # keep\n\n[mcp_servers.other]\ncommand = "x"\n\n'
    "[tui]\nx = 1\n",
}
URL = "http://127.0.0.1:9/mcp"  # nothing listens there


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Home folder and working folder of the person."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("perdure.cli.local.mcp.peers.DEFAULT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("perdure.cli.local.mcp.command_user.TASKS_ROOT", tmp_path / "var/tasks")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str, code: int = 0, text: str | None = None) -> Result:
    result = CliRunner().invoke(cli, ["mcp", *words], input=text)
    assert result.exit_code == code, result.output
    return result


def parsed(client: str, text: str) -> Any:
    return tomllib.loads(text) if client == "codex" else json.loads(text)


@pytest.mark.parametrize("client", CLIENTS)
def test_an_entry_is_added_and_removed_and_every_other_byte_stays(client: str, home: Path) -> None:
    name, key = CLIENTS[client]
    file = home / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(EXISTING[client])
    file.chmod(0o640)
    run("install", client)
    after = file.read_text()
    entry = parsed(client, after)[key].pop("perdure")
    assert "mcp" in (entry.get("args") or entry["command"])
    before = parsed(client, EXISTING[client])
    assert {**parsed(client, after), key: None} == {**before, key: None}
    assert set(EXISTING[client].splitlines()) - set(after.splitlines()) <= {
        '        "other": {"command": "x"}',
        EXISTING["opencode"],
    }
    assert file.stat().st_mode & 0o777 == 0o640
    backup = file.with_name(file.name + ".perdure-backup")
    assert backup.read_text() == EXISTING[client]
    run("uninstall", client)
    assert parsed(client, file.read_text()) == before
    run("uninstall", client, code=3)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("scope", ["user", "project"])
def test_a_client_without_a_file_gets_one_with_the_entry_alone(
    client: str, scope: str, home: Path
) -> None:
    run("install", client, "--scope", scope)
    listed = json.loads(run("status", "--json").stdout)["clients"]
    row = next(item for item in listed if (item["client"], item["scope"]) == (client, scope))
    data = parsed(client, Path(row["file"]).read_text())
    assert data == {CLIENTS[client][1]: {"perdure": row["entry"]}}
    assert Path(row["file"]).is_relative_to(home)


def test_clients_that_do_not_wait_for_a_process_get_the_settings_that_make_them_wait() -> None:
    claude = json.loads(run("install", "claude", "--print", "--json").stdout)["entry"]
    codex = json.loads(run("install", "codex", "--print", "--json").stdout)["entry"]
    assert claude["alwaysLoad"] is True
    assert (codex["required"], codex["startup_timeout_sec"]) == (True, 30)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_token_is_written_as_the_name_of_its_variable(
    client: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SX.7"""
    monkeypatch.setenv("PERDURE_TOKEN", "the-secret-itself")
    run("install", client, "--http", "http://127.0.0.1:9")
    text = (home / CLIENTS[client][0]).read_text()
    assert "PERDURE_TOKEN" in text
    assert URL in text
    assert "the-secret-itself" not in text


@pytest.mark.parametrize("client", CLIENTS)
def test_another_entry_is_replaced_only_after_a_question(client: str, home: Path) -> None:
    run("install", client, "--http", "http://127.0.0.1:9")
    file = home / CLIENTS[client][0]
    before = file.read_text()
    result = CliRunner().invoke(cli, ["mcp", "install", client])
    assert result.exit_code == 5
    assert file.read_text() == before
    run("install", client, "--yes")
    assert URL not in file.read_text()
    run("install", client)  # the same entry again


BROKEN = {
    "claude": '{"mcpServers": ',
    "opencode": '{\n  // a comment\n  "mcp": {}\n}\n',
    "codex": 'mcp_servers = { perdure = { command = "x" } }\n',
}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_file_that_cannot_be_edited_stays_and_the_entry_is_printed(
    client: str, home: Path
) -> None:
    file = home / CLIENTS[client][0]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(BROKEN[client])
    result = run("install", client, code=1)
    assert file.read_text() == BROKEN[client]
    assert parsed(client, result.stdout)[CLIENTS[client][1]]["perdure"]
    assert not list(file.parent.glob("*.perdure-backup"))


def test_print_changes_nothing(home: Path) -> None:
    printed = json.loads(run("install", "claude", "--print").stdout)
    assert printed["mcpServers"]["perdure"]["type"] == "stdio"
    assert not (home / ".claude.json").exists()


def test_a_link_to_a_configuration_stays_a_link(home: Path) -> None:
    real = home / "dotfiles.json"
    real.write_text("{}")
    (home / ".claude.json").symlink_to(real)
    run("install", "claude")
    assert (home / ".claude.json").is_symlink()
    assert "perdure" in real.read_text()


def test_a_copy_of_the_file_is_never_written_through_a_link(home: Path) -> None:
    """A project that somebody else wrote may have a link in the place of the copy."""
    victim = home / "settings.json"
    victim.write_text("mine")
    project = home / "project"
    project.mkdir()
    (project / ".mcp.json").write_text('{"hooks": "theirs"}')
    (project / ".mcp.json.perdure-backup").symlink_to(victim)
    with contextlib.chdir(project):
        run("install", "claude", "--scope", "project")
    assert victim.read_text() == "mine"
    assert (project / ".mcp.json.perdure-backup").read_text() == '{"hooks": "theirs"}'


@pytest.mark.parametrize(
    "words",
    [
        ("--http", "https://ana:hunter2@perdure.example"),
        ("--store", "postgresql://ana:hunter2@db.example/perdure"),
        ("--store", "postgresql://db.example/perdure?user=ana&password=hunter2"),
    ],
)
def test_a_password_in_a_url_is_not_written(home: Path, words: tuple[str, str]) -> None:
    """SX.7"""
    result = run("install", "claude", *words, code=2)
    assert "has a password" in result.output
    assert "hunter2" not in result.output
    assert not (home / ".claude.json").exists()


@pytest.mark.parametrize("client", CLIENTS)
def test_the_ends_of_lines_stay_as_they_are(client: str, home: Path) -> None:
    file = home / CLIENTS[client][0]
    file.parent.mkdir(parents=True, exist_ok=True)
    before = EXISTING[client].replace("\n", "\r\n").encode()
    file.write_bytes(before)
    run("install", client)
    assert file.with_name(f"{file.name}.perdure-backup").read_bytes() == before
    run("uninstall", client)
    assert file.read_bytes() == before


# --- a project that somebody else wrote -----------------------------------------------------------


PROJECT_FILES = {
    "claude": ".mcp.json",
    "opencode": "opencode.json",
    "codex": ".codex/config.toml",
}


def _dangling(file: Path, outside: Path) -> None:
    file.symlink_to(outside / "created.json")


def _linked(file: Path, outside: Path) -> None:
    file.symlink_to(outside / "mine")


def _folder_linked(file: Path, outside: Path) -> None:
    file.parent.rmdir()
    file.parent.symlink_to(outside)


def _endless(file: Path, _: Path) -> None:
    file.symlink_to("/dev/zero")


def _fifo(file: Path, _: Path) -> None:
    os.mkfifo(file)


def _large(file: Path, _: Path) -> None:
    with file.open("wb") as opened:
        opened.truncate(1024**3)


def _nested(file: Path, _: Path) -> None:
    if file.suffix == ".toml":
        file.write_text(f"[{'.'.join(['a'] * 5_000)}]\n")
    else:
        file.write_text('{"a":' * 5_000 + "1" + "}" * 5_000)


def _folder(file: Path, _: Path) -> None:
    file.mkdir()


HOSTILE = [
    (client, prepare)
    for client in CLIENTS
    for prepare in (_dangling, _linked, _endless, _fifo, _large, _nested, _folder)
]


@pytest.mark.parametrize("client, prepare", [*HOSTILE, ("codex", _folder_linked)])
def test_a_file_of_a_project_that_is_not_an_ordinary_one_is_left_alone(
    client: str, prepare: Callable[[Path, Path], None], home: Path
) -> None:
    outside, project = home / "outside", home / "project"
    outside.mkdir()
    (outside / "mine").write_text(EXISTING[client])
    file = project / PROJECT_FILES[client]
    file.parent.mkdir(parents=True)
    prepare(file, outside)
    before = sorted(outside.iterdir())
    with contextlib.chdir(project):
        result = run("install", client, "--scope", "project", code=1)
        listed = json.loads(run("status", "--json").stdout)["clients"]
        run("uninstall", client, "--scope", "project", code=2)
    (told,) = [line for line in result.stderr.splitlines() if line.startswith(str(file))]
    assert told.endswith("it was left alone. The entry is:")
    assert parsed(client, result.stdout)[CLIENTS[client][1]]["perdure"]
    row = next(item for item in listed if (item["client"], item["scope"]) == (client, "project"))
    assert row["readable"] is False
    assert row["problem"] in told
    assert sorted(outside.iterdir()) == before
    assert (outside / "mine").read_text() == EXISTING[client]


def test_a_link_of_the_person_that_leads_to_no_file_is_left_alone(home: Path) -> None:
    (home / ".claude.json").symlink_to(home / "dotfiles" / "claude.json")
    result = run("install", "claude", code=1)
    assert "is a link that leads to no file; it was left alone" in result.stderr
    assert not (home / "dotfiles").exists()


def test_a_folder_that_cannot_be_written_is_one_line(home: Path) -> None:
    (home / ".codex").write_text("a file in the place of the folder")
    result = run("install", "codex", code=2)
    assert f"error: {home}/.codex/config.toml cannot be written" in result.stderr


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/?token=abc-secret",
        "http://127.0.0.1:9/#abc-secret",
        "http://abc-secret@127.0.0.1:9",
        "127.0.0.1:9/?token=abc-secret",
    ],
)
@pytest.mark.parametrize("option", ["--http", "--server"])
def test_a_secret_in_the_url_of_a_server_is_neither_written_nor_shown(
    home: Path, option: str, url: str
) -> None:
    """SX.7"""
    result = run("install", "claude", option, url, code=2)
    assert "must have no user, query or fragment" in result.stderr
    assert "abc-secret" not in result.output
    assert not (home / ".claude.json").exists()


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "http://", "http://[::1", "http://h:x", "h y"])
def test_text_that_is_not_the_url_of_a_server_is_refused(home: Path, url: str) -> None:
    assert "is not the URL of a server" in run("install", "claude", "--http", url, code=2).stderr
    assert not (home / ".claude.json").exists()


# --- the configuration of a project ---------------------------------------------------------------


def arguments(*words: str) -> list[str]:
    entry = json.loads(run("install", "claude", "--print", "--json", *words).stdout)["entry"]
    found: list[str] = entry["args"]
    return found[found.index("mcp") :]


def test_a_project_is_not_chosen_without_a_person_or_an_option(home: Path) -> None:
    (home / "perdure.yaml").write_text("agents: {}\n")
    result = run("install", "claude", code=2)
    assert "--config perdure.yaml" in result.stderr
    assert "--own" in result.stderr
    run("install", "claude", "--yes", code=2)  # is about another entry, not about trust
    assert not (home / ".claude.json").exists()
    assert arguments("--own") == ["mcp"]
    assert arguments("--config", "perdure.yaml") == ["mcp", "--config", str(home / "perdure.yaml")]


@pytest.mark.parametrize("answer", ["y", "n", ""])
def test_a_person_is_asked_whether_the_client_may_use_the_project(
    home: Path, answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "perdure.yaml").write_text("agents: {}\n")
    # Root is asked for a user of commands then.
    assert at_terminal(f"{answer}\nn", monkeypatch, "install", "claude") == 0
    assert "can run Python of its folder and switch the sandbox off" in capsys.readouterr().err
    entry = json.loads((home / ".claude.json").read_text())["mcpServers"]["perdure"]
    assert (str(home / "perdure.yaml") in entry["args"]) is (answer == "y")


def at_terminal(answer: str, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Run a command of a person who types an answer in each line; return its exit code."""
    keyboard, terminal = pty.openpty()
    os.write(keyboard, f"{answer}\n".encode())
    with os.fdopen(terminal) as stdin, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", stdin)
        with pytest.raises(SystemExit) as ended:
            cli(["mcp", *words])
    os.close(keyboard)
    return int(ended.value.code or 0)


def test_every_path_of_an_entry_is_a_full_one(home: Path) -> None:
    (home / "sub").mkdir()
    assert arguments("--app", "shop:rt") == ["mcp", "--app", f"{home}/shop:rt"]
    assert arguments("--app", "sub/shop:rt") == ["mcp", "--app", f"{home}/sub/shop:rt"]
    assert arguments("--app", "/x/shop:rt") == ["mcp", "--app", "/x/shop:rt"]
    assert arguments("--store", "sqlite:///p.db") == ["mcp", "--store", f"sqlite:///{home}/p.db"]
    assert arguments("--store", "files:./p") == ["mcp", "--store", f"files:{home}/p"]
    url = "postgresql://db/perdure"
    assert arguments("--store", url, "--tenant", "a") == ["mcp", "--store", url, "--tenant", "a"]
    run("install", "claude", "--config", "mistyped.yaml", code=2)


def test_a_program_of_the_current_folder_is_never_the_command(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "perdure").write_text("#!/bin/sh\n")
    (home / "perdure").chmod(0o755)
    monkeypatch.setenv("PATH", ".")
    entry = json.loads(run("install", "claude", "--print", "--json").stdout)["entry"]
    assert Path(entry["command"]).is_absolute()
    assert entry["args"] == ["-P", "-m", "perdure.cli", "mcp"]  # which imports nothing from there


# --- root -----------------------------------------------------------------------------------------

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root needs a user for commands")
OWN = ".config/perdure/perdure.yaml"


@ROOT_ONLY
def test_root_is_told_that_commands_need_a_user(home: Path) -> None:
    result = run("install", "claude")
    assert "Commands in tasks will be refused: perdure runs as root; add --run-as" in result.stderr
    assert not (home / OWN).exists()
    (home / OWN).parent.mkdir(parents=True)
    (home / OWN).write_text("agents: {}\n")
    assert f"tasks.run_as in {home / OWN} does not name a user" in run("install", "claude").stderr
    (home / OWN).write_text("tasks: {run_as: nobody}\n")
    assert run("install", "claude").stderr == ""


@ROOT_ONLY
@pytest.mark.parametrize("answer", ["", "n"])
def test_a_person_who_is_root_can_accept_a_user_for_commands(
    home: Path, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert at_terminal(answer, monkeypatch, "install", "claude") == 0
    assert (home / OWN).exists() is (answer == "")


@ROOT_ONLY
def test_commands_run_in_the_sandbox_as_the_user_that_install_has_written(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3.1"""
    require_bwrap()
    with open_folder() as folder:
        root = folder / "deeper" / "tasks"
        monkeypatch.setattr("perdure.cli.local.mcp.command_user.TASKS_ROOT", root)
        run("install", "claude", "--run-as", "nobody")
        assert (root.stat().st_mode & 0o777, root.parent.stat().st_mode & 0o777) == (0o710, 0o755)
        run("install", "claude", "--run-as", "nobody", code=5)
        own = {"XDG_CONFIG_HOME": f"{home}/.config", "XDG_DATA_HOME": f"{home}/.local/share"}
        with started(home, **own) as server:
            server.send(INITIALIZE, INITIALIZED)
            server.reply()
            server.call(1, "create_task_sandbox", name="x", taskId="t")
            server.call(2, "attach_agent_to_task", taskId="t", agentId="me")
            executed = server.call(
                3, "execute_in_task", taskId="t", command="echo 2 3 5 > p; cat p"
            )
            server.finish()
        assert (executed["stdout"], executed["sandbox"]) == ("2 3 5\n", "bwrap")
        assert not list(Path(f"{home}/.local/share/perdure").glob("*.tasks"))


@ROOT_ONLY
def test_the_log_of_a_start_as_root_says_what_is_missing_for_commands(home: Path) -> None:
    with started(home) as server:
        server.send(INITIALIZE, INITIALIZED, {"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
        assert "commands in tasks are refused: perdure runs as root" in server.log_line()


@pytest.mark.parametrize(
    "words, text",
    [
        (("--run-as", "root"), "must not be root"),
        (("--run-as", "no-such-user"), "there is no user 'no-such-user'"),
        (("--run-as", "nobody", "--store", "sqlite:///p.db"), "your own configuration"),
    ],
)
def test_a_user_for_commands_that_cannot_be_used_is_refused(
    home: Path, words: tuple[str, ...], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert text in run("install", "claude", *words, code=2).stderr
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    run("install", "claude", *words, code=2)
    assert not (home / OWN).exists()
    assert not (home / ".claude.json").exists()
