"""The pages of MCP clients: the one command works, and its entry is the one on the page."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import ROOT
from tests.support.server import run

DOCS = ROOT / "docs"
FILES = {
    "claude": ".claude.json",
    "opencode": ".config/opencode/opencode.json",
    "codex": ".codex/config.toml",
}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def portable(value: Any) -> Any:
    """Return an entry with the program's name instead of its path."""
    if isinstance(value, dict):
        return {key: portable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [portable(item) for item in value]
    if isinstance(value, str) and (value.endswith("/perdure") or "python" in value):
        return "perdure"
    return value


@pytest.mark.parametrize("client", FILES)
def test_the_one_command_of_a_page_writes_the_entry_of_the_page(
    client: str, tmp_path: Path
) -> None:
    page = DOCS / f"mcp-{client}.md"
    command = blocks(page, "sh")[0].splitlines()[1].split()
    assert command[0] == "perdure"
    # A server that happens to run on this machine would get an HTTP entry.
    words = [*command[1:], "--store", f"sqlite:///{tmp_path}/p.db"]
    result = run(tmp_path, *words, HOME=str(tmp_path), XDG_CONFIG_HOME=f"{tmp_path}/.config")
    assert result.returncode == 0, result.stderr
    text = (tmp_path / FILES[client]).read_text()
    if client == "codex":
        written, shown = tomllib.loads(text), tomllib.loads(blocks(page, "toml")[0])
    else:
        written, shown = json.loads(text), json.loads(blocks(page, "json")[0])
    entry = portable(written)
    assert json.loads(without_store(entry)) == shown
    removed = run(tmp_path, "mcp", "uninstall", client, HOME=str(tmp_path))
    assert removed.returncode == 0, removed.stderr


def without_store(entry: Any) -> str:
    text = json.dumps(entry).replace('"perdure", "-P", "-m", "perdure.cli"', '"perdure"')
    return re.sub(r', "--store", "[^"]*"', "", text).replace('["-P", "-m", "perdure.cli", ', "[")
