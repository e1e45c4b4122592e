"""A new project runs at once, offline, and its own test passes."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.cli_project import Shop


def test_a_new_project_runs(shop: Shop) -> None:
    made = shop.json("init", "project", app=None)
    assert "perdure.yaml" in made["created"]
    folder = shop.folder / "project"

    def typed(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            capture_output=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONUTF8": "1"},
            check=False,
        )

    assert typed("-m", "pytest", "-q", "-p", "no:cacheprovider").returncode == 0
    ran = typed("-m", "perdure.cli", "run", "shop", "Refund order 991")
    assert ran.returncode == 8, ran.stderr
    done = typed("-m", "perdure.cli", "approve", "@last")
    assert done.returncode == 0, done.stderr
    assert "order 991 was refunded" in done.stdout + done.stderr
    checked = typed("-m", "perdure.cli", "config", "validate")
    assert checked.returncode == 0
    assert "warning" not in checked.stdout


def test_nothing_that_is_there_is_changed(shop: Shop) -> None:
    Path("perdure.yaml").write_text("agents: {}", "utf-8")
    refused = shop.run("init", app=None)
    assert refused.exit_code == 5
    assert "already exists; nothing was written" in refused.output
    assert not Path("turns.json").exists()


def test_a_folder_that_cannot_be_made_is_named_with_what_to_type(shop: Shop) -> None:
    Path("file").write_text("", "utf-8")
    refused = shop.run("init", "file/project", app=None)
    assert refused.exit_code == 2
    assert "error: file/project cannot be written: Not a directory" in refused.stderr
    assert "hint: name another directory" in refused.stderr
