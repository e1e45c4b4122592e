"""The page about sessions as files tells the truth: its programs and commands run."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.paths import ROOT

from perdure.cli.root import cli

PAGE = (ROOT / "docs" / "session-logs.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("program", blocks("python"))
def test_its_programs_run(tmp_path: Path, program: str) -> None:
    code = f"{program}\nimport anyio\nanyio.run(main)\n"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("sessions/*/events.jsonl"))


def test_its_commands_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in (ROOT / "tests" / "data" / "foreign").iterdir():
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    *_, commands = blocks("sh")  # the others need folders of an earlier version, or lost ones
    for command in commands.splitlines():
        told = CliRunner().invoke(cli, command.split()[1:])
        assert told.exit_code == 0, told.output
    assert len(list(tmp_path.glob("sessions/*/events.jsonl"))) == 4


def test_the_readme_leads_to_it() -> None:
    assert "(docs/session-logs.md)" in (ROOT / "README.md").read_text()
