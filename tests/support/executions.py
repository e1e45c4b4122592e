"""Commands in tests: a folder that an unprivileged user can enter, and options that name it."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from perdure.options import TaskOptions


def task_options(folder: Path, **options: Any) -> TaskOptions:
    """Return the options of tasks below a folder; without a sandbox unless one is named."""
    user = {"run_as": "nobody"} if os.geteuid() == 0 else {}
    chosen = {"root": str(folder / "tasks"), "sandbox": "none", **user, **options}
    return cast("TaskOptions", chosen)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-exec-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
