"""Packages of npm in a folder of their own, installed at the first run."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from tests.servers.fixtures import NOT_TESTED
from tests.support.paths import ROOT

INSTALL_S: Final = 900


def installed(name: str, packages: Sequence[str], title: str) -> Path:
    """Return the folder `node_modules` with exactly these packages; skip loudly without npm."""
    folder = ROOT / ".cache" / name
    done = folder / f"installed-{'+'.join(p.rpartition('@')[2] for p in packages)}"
    if not done.exists():
        reason = _install(folder, packages)
        if reason is not None:
            _missing(title, reason)
        done.touch()
    return folder / "node_modules"


def _install(folder: Path, packages: Sequence[str]) -> str | None:
    """Install the packages; return the reason if that is not possible."""
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not installed (Debian: npm)"
    folder.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), *packages]
    result = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    return f"npm install failed: {result.stderr[-300:]}" if result.returncode else None


def _missing(title: str, reason: str) -> None:
    """Skip loudly; in CI, fail if npm exists and its packages cannot be used."""
    if os.environ.get("CI") == "true" and shutil.which("npm"):
        pytest.fail(f"{title} cannot run: {reason}", pytrace=False)
    pytest.skip(f"{NOT_TESTED}{title}: {reason}")
