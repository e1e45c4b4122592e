"""The MCP conformance suite against the product's `/mcp`, in both eras, and the Inspector's lint.

The suite passes some scenarios with nothing listening, so the counts are compared too. It needs npm
and, once, the network; it is kept in a folder of its own.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.servers.ports import free_port
from tests.support.npm import installed
from tests.support.server import around

PACKAGES: Final = (
    "@modelcontextprotocol/conformance@0.2.0-alpha.12",
    "@modelcontextprotocol/inspector@2.12.0",
    "node@22",
)
SCORED: Final = {"2026-07-28": 37, "2025-11-25": 30}
TASK_CHECKS: Final = 44
RUN_S: Final = 180
LINE: Final = re.compile(r"^([✓✗]) ([a-z0-9-]+): (\d+) passed, (\d+) failed", re.MULTILINE)


@pytest.fixture(scope="module")
def modules() -> Path:
    """The folder of the suite, installed by npm at the first run."""
    return installed("mcp-conformance", PACKAGES, "MCP conformance")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the profile's server."""
    folder, port = tmp_path_factory.mktemp("profile"), free_port()
    program = "tests.serve.mcp.conformance.profile"
    process = subprocess.Popen(
        [sys.executable, "-m", program, str(folder), str(port)],
        cwd=folder,
        env=around(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "listening\n"
    yield f"http://127.0.0.1:{port}/mcp"
    process.kill()
    process.wait()
    process.stdout.close()


def node(modules: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the suite with the Node.js that it needs."""
    binary = modules / "node" / "bin" / "node"
    script = modules / "@modelcontextprotocol" / program
    return subprocess.run(
        [str(binary), str(script), *words],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )


@pytest.mark.parametrize("revision", SCORED)
def test_every_scored_scenario_of_a_revision_passes(
    modules: Path, url: str, revision: str, tmp_path: Path
) -> None:
    """S3.14, C24"""
    suite, output = "conformance/dist/index.js", str(tmp_path)
    words = ("server", "--url", url, "--requirements", revision, "--output-dir", output)
    report = node(modules, suite, *words).stdout
    rows = {name: (mark, int(passed)) for mark, name, passed, _ in LINE.findall(report)}
    assert not [name for name, (mark, _) in rows.items() if mark == "✗"], report[-6000:]
    unscored = set(re.findall(r"^  [✓✗] ([a-z0-9-]+) \(", report, re.MULTILINE))
    scored = rows.keys() - unscored
    assert len(scored) == SCORED[revision], report[-3000:]
    assert all(rows[name][1] > 0 for name in scored)
    if revision == "2026-07-28":
        checks = sum(passed for name, (_, passed) in rows.items() if name.startswith("tasks-"))
        assert checks == TASK_CHECKS


def test_the_inspector_finds_nothing_wrong_with_the_tools(modules: Path, url: str) -> None:
    """S3.1"""
    words = ("--cli", url, "--transport", "http", "--method", "tools/list", "--strict")
    result = node(modules, "inspector/clients/launcher/build/index.js", *words)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    assert "execute_in_task" in result.stdout
