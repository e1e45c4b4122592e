"""Sandboxes in tests: an unprivileged user, workspaces that it can enter, and commands."""

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from tests.servers.fixtures import NOT_TESTED

from perdure.sandbox.base import Channel, ExecResult, ExecSpec, RunAs, Sandbox
from perdure.sandbox.rlimits import PATH

PYTHON: Final = shutil.which("python3", path=PATH) or ""  # which commands can reach
MISSING: Final = " and ".join(
    f"{program} is not installed (Debian: {package})"
    for program, package in (("bwrap", "bubblewrap"), ("python3", "python3"))
    if shutil.which(program, path=f"{PATH}:{os.environ.get('PATH', '')}") is None
)
UID: Final = 54321  # of nobody else on the host
RUN_AS: Final = RunAs(UID, UID) if os.geteuid() == 0 else None


def require_bwrap() -> None:
    """Skip the test without the programs that sandboxes need, or fail in CI."""
    if MISSING and os.environ.get("CI") == "true":
        pytest.fail(f"{MISSING}, and in CI nothing may be skipped")
    if MISSING:
        pytest.skip(f"{NOT_TESTED}{MISSING}")


@pytest.fixture
def workspace() -> Iterator[Path]:
    """A folder that the unprivileged user owns and can reach, unlike pytest's."""
    root = Path(tempfile.mkdtemp(prefix="perdure-sandbox-"))
    root.chmod(0o755)
    folder = root / "workspace"
    folder.mkdir()
    if RUN_AS is not None:
        os.chown(folder, RUN_AS.uid, RUN_AS.gid)
    yield folder
    subprocess.run(["rm", "-rf", str(root)], check=True)  # at any depth, unlike shutil


@dataclass
class Ran:
    """A command that has ended: its result and its output."""

    result: ExecResult
    chunks: dict[Channel, bytes] = field(default_factory=dict)

    @property
    def stdout(self) -> str:
        return self.chunks["stdout"].decode(errors="replace")

    @property
    def stderr(self) -> str:
        return self.chunks["stderr"].decode(errors="replace")


async def run(
    sandbox: Sandbox,
    workspace: Path,
    command: str,
    *,
    cancel: asyncio.Event | None = None,
    **spec: Any,
) -> Ran:
    """Run a shell command and collect its output."""
    chunks: dict[Channel, list[bytes]] = {"stdout": [], "stderr": []}
    spec = {"run_id": f"test-{os.urandom(6).hex()}", **spec}
    result = await sandbox.exec(
        workspace,
        ExecSpec(["/bin/sh", "-c", command], **spec),
        lambda channel, chunk: chunks[channel].append(chunk),
        cancel=cancel,
    )
    return Ran(result, {channel: b"".join(parts) for channel, parts in chunks.items()})


def processes_with(marker: str) -> list[int]:
    """Return the processes with this text in their arguments."""
    pids = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and marker.encode() in (folder / "cmdline").read_bytes():
                pids.append(int(folder.name))
        except OSError:
            continue
    return pids


async def gone(marker: str, deadline_s: float = 10) -> bool:
    """Wait until no process has this text in its arguments."""
    deadline = time.monotonic() + deadline_s
    while processes_with(marker) and time.monotonic() < deadline:  # noqa: ASYNC110 - of the host
        await asyncio.sleep(0.02)
    return not processes_with(marker)
