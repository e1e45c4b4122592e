"""The wheel installs into a fresh environment, and the program of the README runs there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.paths import ROOT

PROGRAM = re.findall(
    r"<!-- examples/refund.py -->\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
)


def run(folder: Path, *command: str | Path) -> str:
    """Run a command outside the repository; return what it printed."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env |= {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of a fresh environment with the wheel and its base dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    run(folder, sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT)
    run(folder, sys.executable, "-m", "venv", folder / "env")
    (wheel,) = folder.glob("perdure-*.whl")
    run(folder, folder / "env/bin/python", "-m", "pip", "install", "-q", wheel)
    return folder / "env" / "bin"


def test_the_program_of_the_readme_runs_from_the_wheel(fresh: Path, tmp_path: Path) -> None:
    (tmp_path / "refund.py").write_text(PROGRAM[0])
    assert run(tmp_path, fresh / "python", "refund.py").startswith("waiting")
    run(tmp_path, fresh / "perdure", "--app", "refund:rt", "approve", "@last")
    run(
        tmp_path,
        fresh / "perdure",
        "--app",
        "refund:rt",
        "pending",
        "result",
        "@last",
        "--output",
        "here",
    )
    assert run(tmp_path, fresh / "python", "refund.py").startswith("completed")


def test_a_project_starts_from_the_wheel(fresh: Path, tmp_path: Path) -> None:
    run(tmp_path, fresh / "perdure", "init")
    assert "valid" in run(tmp_path, fresh / "perdure", "config", "validate")


def test_the_wheel_has_the_templates_and_files_of_the_pages(fresh: Path, tmp_path: Path) -> None:
    program = (
        "from perdure.serve.ui.static_files import static_files\n"
        "from perdure.serve.ui.templates import PageContext, render\n"
        "print(len(static_files()), len(render('error.html', PageContext('', '', {}),"
        " status=404, error={'error': 'x', 'code': 'y', 'hint': '', 'details': {}})))"
    )
    files, size = run(tmp_path, fresh / "python", "-c", program).split()
    assert files == "3"
    assert int(size) > 1_000
