"""docs/sandbox.md: its configuration is valid, and it names every guarantee and weakness."""

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from tests.support.paths import ROOT

from perdure.sandbox.base import Guarantee

PAGE = (ROOT / "docs" / "sandbox.md").read_text()


def test_the_configuration_is_valid(tmp_path: Path) -> None:
    match = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert match is not None
    text = match[1].replace("/opt/toolchain", "/usr/share").replace("perdure-tasks", "nobody")
    (tmp_path / "perdure.yaml").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "perdure.cli", "config", "validate"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("guarantee", get_args(Guarantee))
def test_every_guarantee_is_explained(guarantee: str) -> None:
    assert f"`{guarantee}`" in PAGE
