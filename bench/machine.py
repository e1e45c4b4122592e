"""What the numbers were taken on: cores, Python, SQLite, disk, and what else ran."""

import os
import platform
import sqlite3
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent


def facts() -> list[str]:
    """What stays from one measurement to the next, one line each."""
    system = f"{platform.system()} {platform.release().split('-')[0]}"
    return [
        f"machine: {os.cpu_count()} cores, {_processor()}, {_memory_gb():.0f} GB, {system}",
        f"disk: {_file_system(Path.cwd())}",
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}",
    ]


def moment() -> str:
    """When something is measured, on which version, and what else runs: asked for before it."""
    now = datetime.now(UTC).strftime("%Y-%m-%d")
    load = f"load average before {os.getloadavg()[0]:.1f}"
    return f"{now}, perdure {version('perdure')}{_commit()}, {load}"


def _commit() -> str:
    """The commit of the tree, if it is one of git's."""
    try:
        asked = ["git", "rev-parse", "--short", "HEAD"]
        found = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=HERE)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f", commit {found.stdout.strip()}"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


def _file_system(path: Path) -> str:
    """The file system that a path is on; `unknown` where the system does not say."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "unknown"
    rows = [line.split() for line in mounts.read_text().splitlines()]
    over = [row for row in rows if path.is_relative_to(row[1])]
    return max(over, key=lambda row: len(row[1]))[2] if over else "unknown"
