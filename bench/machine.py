"""Description of the machine and of a run: cores, Python, SQLite, disk, version and load."""

import os
import platform
import sqlite3
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent


def facts() -> list[str]:
    """Return the properties that stay the same between runs, one line each."""
    system = f"{platform.system()} {platform.release().split('-')[0]}"
    return [
        f"machine: {os.cpu_count()} cores, {_processor()}, {_memory_gb():.0f} GB, {system}",
        f"disk: {_file_system(Path.cwd())}",
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}",
    ]


def run_label() -> str:
    """Return the date, version and load average; call it before a measurement starts."""
    now = datetime.now(UTC).strftime("%Y-%m-%d")
    load = f"load average before the run {os.getloadavg()[0]:.1f}"
    return f"{now}, perdure {version('perdure')}{_commit()}, {load}"


def _commit() -> str:
    """Return the commit of the source tree, or an empty string outside a git repository."""
    try:
        command = ["git", "rev-parse", "--short", "HEAD"]
        process = subprocess.run(command, capture_output=True, text=True, check=True, cwd=HERE)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f", commit {process.stdout.strip()}"


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
    """Return the type of the file system of a path, or `unknown`."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "unknown"
    rows = [line.split() for line in mounts.read_text().splitlines()]
    mounted = [row for row in rows if path.is_relative_to(row[1])]
    return max(mounted, key=lambda row: len(row[1]))[2] if mounted else "unknown"
