"""Entries in the configurations of MCP clients: one is added, and nothing else changes."""

import contextlib
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

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
    for name in ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("perdure.cli.actions.mcp.install.DEFAULT_URL", "http://127.0.0.1:9")
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
