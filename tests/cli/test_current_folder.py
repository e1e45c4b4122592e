"""What commands run of the folder that they are started in, and what docs/security.md says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs/security.md"
# A command line for each name in the page that ends by itself.
LINES = {
    "perdure mcp": "mcp --no-worker",
    "mcp install": "mcp install claude --scope project",
    "uninstall": "mcp uninstall claude --scope project",
    "status": "mcp status",
    "run": "run nobody hi",
    "chat": "chat nobody",
    "worker": "worker --once",
    "config validate": "config validate",
    "sessions": "sessions list",
    "pending": "pending list",
    "approve": "approve p_1",
    "deny": "deny p_1",
    "tasks": "tasks list",
    "agents": "agents list",
    "doctor": "doctor",
    "db": "db stats",
    "webhook list": "webhook list",
    "webhook redeliver": "webhook redeliver d_1",
    "webhook sign": "webhook sign --pending p_1",
    "init": "init new",
    "--help": "--help",
    "--version": "--version",
}
OTHERS = {"demo", "serve"}
MODULE = '''
open("IMPORTED", "w").close()
from perdure import tool
@tool
def f() -> str:
    """Do nothing."""
'''


def documented() -> dict[str, bool]:
    """Return for each command in the table whether its row says that Python is imported."""
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", DOCS.read_text(), re.MULTILINE)
    imports = False
    found: dict[str, bool] = {}
    for names, reads in rows:
        imports = "imports what it names" in reads or (imports and reads.startswith("the same"))
        found |= dict.fromkeys(re.findall(r"`(.*?)`", names), imports)
    return {name: imports for name, imports in found.items() if name in {*LINES, *OTHERS}}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "clone"
    folder.mkdir()
    (folder / "theirs.py").write_text(MODULE)
    for name in ("sitecustomize", "conftest", "perdure", "yaml"):  # nothing ever imports these
        (folder / f"{name}.py").write_text(f'open("IMPORTED-{name}", "w").close()')
    (folder / "turns.json").write_text("[]")
    (folder / ".env").write_text("PERDURE_TOKEN=theirs")
    (folder / "perdure.yaml").write_text(
        "llms: {m: {provider: scripted, script: turns.json}}\n"
        "agents: {a: {llm: m, tools: ['theirs:f']}}\n"
    )
    return folder


def test_the_page_has_every_command() -> None:
    """S3.1"""
    assert set(documented()) == {*LINES, *OTHERS}


@pytest.mark.parametrize("name", LINES)
def test_a_command_imports_python_of_its_folder_only_if_the_page_says_so(
    clone: Path, name: str
) -> None:
    """S3.1"""
    words = [sys.executable, "-P", "-m", "perdure.cli", *LINES[name].split()]
    env = {**os.environ, "HOME": str(clone.parent)}
    process = subprocess.run(
        words, check=False, cwd=clone, env=env, input=b"", capture_output=True, timeout=60
    )
    assert b"No such command" not in process.stderr
    assert b"No such option" not in process.stderr
    imported = [path.name for path in clone.glob("IMPORTED*")]
    assert imported == (["IMPORTED"] if documented()[name] else [])
