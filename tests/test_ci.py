"""`.ci/run` and `make test`, in a scratch project with the real Makefile, scripts and pytest."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parent.parent
LINTERS = ("ruff", "mypy", "lint-imports")
PASSES = "def test_it(): pass"
FAILS = "def test_it(): assert False"
UNSTABLE = """
    from pathlib import Path
    def test_it_fails_once():
        marker = Path("marker")
        if not marker.exists():
            marker.touch()
            assert False
"""
UNIMPORTABLE_ONCE = """
    from pathlib import Path
    marker = Path("marker")
    if not marker.exists():
        marker.touch()
        raise ImportError
"""
INTERRUPTS_ONCE = """
    import os, signal
    from pathlib import Path
    import pytest

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(report):
        marker = Path("interrupted")
        if report.failed and "PYTEST_XDIST_WORKER" not in os.environ and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose linters accept everything and whose only test passes."""
    for file in (".ci/run", "Makefile", "scripts/test.sh"):
        target = tmp_path / file
        target.parent.mkdir(exist_ok=True)
        if (ROOT / file).exists():
            shutil.copy(ROOT / file, target)
    for file in ("constraints.txt", "scripts/bootstrap.sh", "scripts/docs.py"):
        (tmp_path / file).touch()
    (tmp_path / "pyproject.toml").write_text("[tool.pytest]\ntestpaths = ['tests']\n")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/.ready").touch()
    for linter in LINTERS:
        add_program(tmp_path, linter, "exit 0")
    add_program(tmp_path, "python", f'exec {sys.executable} "$@"')
    add_program(tmp_path, "pytest", f'exec {sys.executable} -m pytest "$@"')
    add_test(tmp_path, PASSES, "test_passes.py")
    return tmp_path


def add_program(project: Path, name: str, line: str) -> None:
    program = project / ".venv/bin" / name
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)


def add_test(project: Path, content: str, file: str) -> None:
    (project / "tests").mkdir(exist_ok=True)
    (project / "tests" / file).write_text(dedent(content))


def run(project: Path, *command: str) -> tuple[int, str]:
    """Run `.ci/run`, or another command, and return its exit code and output."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if "PYTEST" not in name and "MAKE" not in name
    }
    done = subprocess.run(
        command or (".ci/run",),
        cwd=project,
        env=environment | {"TESTS_AT_ONCE": "1", "CI": "true"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def last_lines(output: str) -> list[str]:
    return output.rstrip().splitlines()[-2:]


def test_a_project_without_a_finding_passes(project: Path) -> None:
    status, output = run(project)
    assert status == 0, output
    assert "UNSTABLE" not in output
    assert run(project, "make", "test")[0] == 0


@pytest.mark.parametrize("linter", LINTERS)
def test_a_failing_linter_fails_the_run_before_any_test_starts(project: Path, linter: str) -> None:
    add_program(project, linter, "exit 1")
    status, output = run(project)
    assert status != 0
    assert "passed" not in output
    assert run(project, "make", "test")[0] != 0


def test_a_failing_linter_fails_the_run_also_where_a_test_failed_before(project: Path) -> None:
    """The list of failed tests that pytest keeps is that of an earlier run."""
    add_test(project, FAILS, "test_more.py")
    assert run(project)[0] != 0
    add_test(project, PASSES, "test_more.py")
    add_program(project, "ruff", "exit 1")
    status, output = run(project)
    assert status != 0
    assert "passed" not in output


def test_a_failing_test_fails_the_run(project: Path) -> None:
    add_test(project, FAILS, "test_more.py")
    status, output = run(project)
    assert status == 1
    assert "UNSTABLE" not in output
    assert run(project, "make", "test")[0] != 0


def test_a_test_that_fails_once_is_named_as_unstable_in_the_last_line(project: Path) -> None:
    add_test(project, UNSTABLE, "test_more.py")
    status, output = run(project)
    assert status == 0, output
    assert last_lines(output)[-1].startswith("UNSTABLE: tests/test_more.py::test_it_fails_once ")


def test_an_unstable_test_is_named_also_if_another_test_fails(project: Path) -> None:
    add_test(project, UNSTABLE, "test_more.py")
    add_test(project, FAILS, "test_other.py")
    status, output = run(project)
    assert status == 1
    assert last_lines(output)[-1].startswith("UNSTABLE: tests/test_more.py::test_it_fails_once ")


def test_three_failed_tests_are_not_repeated(project: Path) -> None:
    add_test(project, UNSTABLE, "test_more.py")
    add_test(project, "\n".join(f"def test_{n}(): assert False" for n in range(2)), "test_other.py")
    status, output = run(project)
    assert status == 1
    assert "3 failed" in output
    assert "UNSTABLE" not in output


def test_a_pytest_that_was_interrupted_fails_the_run(
    project: Path,
) -> None:
    add_test(project, UNSTABLE, "test_more.py")
    add_test(project, INTERRUPTS_ONCE, "conftest.py")
    status, output = run(project)
    assert status == 2, output
    assert "UNSTABLE" not in output


def test_a_file_that_once_could_not_be_imported_fails_the_run(project: Path) -> None:
    """With pytest-xdist an error of collection has the exit code of a failed test."""
    add_test(project, f"{dedent(UNIMPORTABLE_ONCE)}\n{PASSES}", "test_more.py")
    status, output = run(project)
    assert status == 1
    assert "UNSTABLE" not in output


def test_a_run_without_tests_fails(project: Path) -> None:
    add_test(project, "", "test_passes.py")
    assert run(project)[0] == 5
