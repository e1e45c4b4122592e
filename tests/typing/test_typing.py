"""Type checkers agree that the public API has the types that users expect."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAMPLE = Path(__file__).with_name("sample.py")


def program(name: str) -> str:
    """Return the path of a type checker; skips without it, and fails in CI."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is not None:
        return found
    if os.environ.get("CI") == "true":
        pytest.fail(f"{name} is not installed: pip install -e '.[dev]'")
    pytest.skip(f"TYPES NOT CHECKED: {name} is not installed; pip install -e '.[dev]'")


def check(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a type checker on this repository."""
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=540, check=False
    )


def test_mypy_accepts_uses_of_the_public_api() -> None:
    checked = check(program("mypy"), str(SAMPLE))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_pyright_accepts_uses_of_the_public_api(tmp_path: Path) -> None:
    project = tmp_path / "pyrightconfig.json"
    project.write_text(
        json.dumps(
            {
                "include": [str(SAMPLE)],
                "extraPaths": [str(ROOT / "src")],
                "typeCheckingMode": "strict",
                "pythonVersion": "3.11",
            }
        )
    )
    checker = program("basedpyright")
    checked = check(checker, "--project", str(project), "--pythonpath", sys.executable)
    assert checked.returncode == 0, checked.stdout + checked.stderr
