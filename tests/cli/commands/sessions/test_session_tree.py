"""`perdure sessions show` draws the background agents below a session."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from perdure.cli.root import cli

PROGRAM = (Path(__file__).parents[4] / "examples" / "researchers.py").read_text("utf-8")


def test_the_background_agents_of_a_session_are_drawn_as_a_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "researchers.py").write_text(PROGRAM, "utf-8")
    runner = CliRunner()
    options = ["--app", "researchers:rt"]
    ran = runner.invoke(cli, [*options, "run", "lead", "Write about tides", "-s", "report"])
    assert ran.exit_code == 0, ran.output
    shown = runner.invoke(cli, [*options, "sessions", "show", "report"]).output
    _, _, tree = shown.partition("Background agents\n")
    rows = [row.split() for row in tree.splitlines()[:3]]
    assert [(row[0], row[1][:3], row[2]) for row in rows] == [
        ("completed", "bg_", "researcher")
    ] * 3
