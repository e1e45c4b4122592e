"""Fixtures: a directory with a configuration, as a user has it."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from perdure.config import load
from perdure.errors import ConfigError

Refusal = Callable[[str], ConfigError]
Write = Callable[[str], str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Use a directory with a script as the current one; unload its modules afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in os.environ:
        if name.startswith("TEST_"):
            monkeypatch.delenv(name)
    (tmp_path / "turns.json").write_text("[]", "utf-8")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(
            sys.modules[name].__file__
        ):
            del sys.modules[name]


@pytest.fixture
def write(folder: Path) -> Write:
    """Return a function that writes perdure.yaml and returns its name."""

    def write_(text: str) -> str:
        (folder / "perdure.yaml").write_text(dedent(text).lstrip("\n"), "utf-8")
        return "perdure.yaml"

    return write_


@pytest.fixture
def refusal(write: Write) -> Refusal:
    """Return a function that returns the error of an invalid configuration."""

    def refusal_(text: str) -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            load(write(text))
        return caught.value

    return refusal_
