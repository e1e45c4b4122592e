"""Folder of a campaign."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can enter, unlike pytest's; a campaign with faults keeps it."""
    path = Path(tempfile.mkdtemp(prefix="perdure-soak-"))
    path.chmod(0o755)
    yield path
    if not (path / "evidence").exists():
        shutil.rmtree(path, ignore_errors=True)
