"""The operator's page tells the truth: its commands work, one after the other."""

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.cli_project import SHOP
from tests.support.paths import ROOT

from perdure.cli.root import cli

RUNTIME = ROOT / "src" / "perdure" / "runtime"
FINDINGS = RUNTIME.parent / "findings"
PAGE = (ROOT / "docs" / "operating.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a session waits in `perdure.db`."""
    (tmp_path / "shop.py").write_text(SHOP.replace("shop.db", "perdure.db"))
    shell(tmp_path, "perdure run support Refund -s s1 --app shop:rt", code=8)
    return tmp_path


def shell(folder: Path, command: str, code: int = 0) -> str:
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert done.returncode == code, (command, done.stdout, done.stderr)
    return done.stdout


def test_every_command_of_the_page_works(folder: Path) -> None:
    commands = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(commands) == 9
    said = {command: shell(folder, command) for command in commands}
    assert said["perdure doctor"].endswith("There are no findings.\n")
    assert shell(folder, "perdure approve @last --store sqlite:///other.db --no-run")
    assert shell(folder, "perdure sessions show s1 --store sqlite:///backup.db")


def test_the_query_of_the_page_works(folder: Path) -> None:
    (query,) = blocks("sql")
    with closing(sqlite3.connect(folder / "perdure.db")) as raw:
        assert raw.execute(query).fetchall() == [("refund", "waiting", 1)]


def test_every_finding_of_the_page_is_one() -> None:
    folders = (FINDINGS, RUNTIME / "diagnosis", RUNTIME / "doctor", RUNTIME / "mcp")
    text = "".join(file.read_text() for folder in folders for file in folder.glob("*.py"))
    table = "\n".join(line for line in PAGE.splitlines() if line.startswith("| "))
    named = set(re.findall(r"`([A-Z_]{5,})`", table)) - {"EVENTS_LOST"}  # the error of a run
    assert len(named) == 24
    assert {code for code in named if f'"{code}"' not in text} == set()


def test_every_command_about_the_database_is_on_the_page() -> None:
    for group in ("db", "doctor"):
        shown = CliRunner().invoke(cli, [group, "--help"]).output
        for command in re.findall(r"^  ([a-z]+)  ", shown.partition("Commands:")[2], re.MULTILINE):
            assert f"perdure {group} {command}" in PAGE


def test_every_link_of_the_page_leads_somewhere_and_the_readme_leads_to_it() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
    assert "(docs/operating.md)" in (ROOT / "README.md").read_text()
