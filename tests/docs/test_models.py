"""The first program of the page about models, as a newcomer runs it, and what it prints."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.paths import DOCS

from perdure.testing.endpoint import fake_endpoint

PAGE = DOCS / "models.md"
PROGRAM = re.findall(r"```python\n(from perdure import.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[
    0
]
ANSWER: dict[str, Any] = {"text": "A clamp."}


def run(folder: Path, url: str | None, **env: str) -> "subprocess.CompletedProcess[str]":
    (folder / "first.py").write_text(PROGRAM)
    around = {name: value for name, value in os.environ.items() if "ANTHROPIC" not in name}
    around |= {"PYTHONPATH": ":".join(sys.path), **env}
    if url is not None:
        around |= {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "any"}
    command = [sys.executable, "first.py"]
    return subprocess.run(
        command, cwd=folder, env=around, capture_output=True, text=True, check=False
    )


def test_it_prints_the_answer_also_after_a_429(tmp_path: Path) -> None:
    with fake_endpoint([{**ANSWER, "fail": ["rate_limit"]}]) as endpoint:
        done = run(tmp_path, endpoint.url)
    assert (done.stdout, done.returncode) == ("A clamp.\n", 0)
    (warning,) = done.stderr.splitlines()  # Python prints warnings of a logger without handlers
    assert warning.startswith(
        "session first: the model request failed (anthropic:claude-sonnet-4-6"
    )
    assert "; attempt 2 of 7 in " in warning


def test_what_is_wrong_is_said_with_what_to_do(tmp_path: Path) -> None:
    with fake_endpoint([{**ANSWER, "fail": ["unknown_model"]}]) as endpoint:
        done = run(tmp_path, endpoint.url)
    error, advice = done.stderr.splitlines()[-2:]
    assert "anthropic:claude-sonnet-4-6: the provider does not know the model" in error
    assert advice.startswith("hint: check its name")
    assert advice.endswith("then: perdure sessions resume first")


def test_without_a_key_it_says_which_one(tmp_path: Path) -> None:
    done = run(tmp_path, None)
    assert done.stderr.splitlines()[-1] == "hint: set ANTHROPIC_API_KEY"
