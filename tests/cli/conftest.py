"""Fixture: a project for the CLI; the logging configuration is restored afterwards."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cli_project import SHOP, Shop


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(
        "perdure.cli.commands.continuation.CLAIM_S", 0.1
    )  # no worker runs in these tests
    root, ours = logging.getLogger(), logging.getLogger("perdure")
    before = (list(root.handlers), root.level, ours.level)
    yield Shop(tmp_path)
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])
    sys.modules.pop("shop", None)
