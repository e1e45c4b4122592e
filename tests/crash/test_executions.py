"""Commands after SIGKILL of the process that runs them: nothing is left, nothing runs twice."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from tests.crash.execution_program import DELETE_SESSION
from tests.support.executions import open_folder, task_options
from tests.support.paths import ROOT
from tests.support.sandboxes import require_bwrap

from perdure import Agent, Runtime
from perdure.app import service_of
from perdure.errors import NotFound
from perdure.runtime.models.scripted import ScriptedModel
from perdure.runtime.tools.shell import NAME as TOOL
from perdure.tasks import TaskLifecycle, TaskRegistry
from perdure.tasks.verbs import TaskVerbs
from perdure.views.tasks import Execution

pytestmark = pytest.mark.anyio
__all__ = ["open_folder"]

Start = Callable[..., "subprocess.Popen[str]"]


BOTH = pytest.mark.parametrize("store", ["sqlite", "postgres"])


@pytest.fixture
def store() -> str:
    return "sqlite"


@pytest.fixture
def url(
    store: str, request: pytest.FixtureRequest, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    require_bwrap()
    monkeypatch.setenv("PERDURE_LEASE", "2s")
    if store == "sqlite":
        return f"sqlite:///{open_folder}/h.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def start(url: str, open_folder: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def popen(*commands: str, sandbox: str = "bwrap", at: int = 0) -> "subprocess.Popen[str]":
        program = [sys.executable, "-m", "tests.crash.execution_program"]
        arguments = [url, str(open_folder), sandbox, str(at), *commands]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen([*program, *arguments], cwd=ROOT, stdout=pipe, text=True))
        return started[-1]

    yield popen
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@asynccontextmanager
async def opened(url: str, folder: Path, sandbox: str = "bwrap") -> AsyncIterator[Runtime]:
    async with Runtime(url, tasks=task_options(folder, sandbox=sandbox)) as rt:
        yield rt


async def prepare(url: str, folder: Path) -> None:
    async with opened(url, folder) as rt:
        await TaskLifecycle(rt).create_task({"name": "Work", "id": "a"})
        await TaskLifecycle(rt).attach_agent("a", "agent")


async def executions(rt: Runtime) -> list[Execution]:
    """Return the executions of the task, oldest first, with their output."""
    verbs = TaskVerbs(service_of(rt).tasks, None).executions
    listed = (await verbs.list("a")).executions
    return [await verbs.get("a", item.execution_id) for item in reversed(listed)]


async def wait_until(condition: Callable[[], bool], within_s: float = 30) -> None:
    with anyio.fail_after(within_s):
        while not condition():  # noqa: ASYNC110 - of another process
            await anyio.sleep(0.02)


def has_process(marker: str) -> bool:
    """Return whether a process runs with this text in its arguments, apart from the program."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"sleep") and marker.encode() in words:
            return True
    return False


@BOTH
async def test_a_killed_runtime_leaves_no_process_and_an_interrupted_command(
    url: str, open_folder: Path, start: Start
) -> None:
    """S3.8, G1, G3, G5"""
    await prepare(url, open_folder)
    marker = f"61.{os.getpid()}{time.monotonic_ns() % 10**9}"
    ran = open_folder / "tasks/a/workspace/ran"
    command = f"echo ran >> ran; echo so far; setsid sleep {marker} & sleep {marker}"
    process = start(command)
    await wait_until(lambda: has_process(marker) and ran.exists())
    process.send_signal(signal.SIGKILL)
    await wait_until(lambda: not has_process(marker), 2)
    async with opened(url, open_folder) as rt:
        task = TaskVerbs(service_of(rt).tasks, None)
        with anyio.fail_after(30):
            while not (findings := (await task.get("a")).findings):
                await anyio.lowlevel.checkpoint()  # until its process counts as dead
            assert [(item.code, item.subject) for item in findings] == [("NO_WORKER", "a")]
            assert "has stopped" in findings[0].text
            worker = TaskLifecycle(rt)
            while (await executions(rt))[0].status == "running":
                await rt.work(once=True)
        (execution,) = await executions(rt)
        assert (execution.reason, execution.exit_code) == ("interrupted", None)
        assert execution.stdout == "so far\n"
        assert execution.success is False
        assert (await task.get("a")).findings == ()
        assert (await worker.execute("a", "cat ran")).stdout == "ran\n"


@BOTH
@pytest.mark.parametrize("at, runs, reason", [(1, 0, "interrupted"), (2, 1, "exited")])
async def test_a_command_runs_at_most_once_wherever_its_process_was_killed(
    url: str, open_folder: Path, start: Start, at: int, runs: int, reason: str
) -> None:
    """G1: after the commit of the start, and after the commit of the end."""
    await prepare(url, open_folder)
    process = start("echo ran >> ran", at=at)
    assert await anyio.to_thread.run_sync(process.wait) == -signal.SIGKILL
    async with opened(url, open_folder) as rt:
        result = await TaskLifecycle(rt).execute("a", "cat ran 2>/dev/null | wc -l")
        assert result.stdout == f"{runs}\n"
        assert [item.reason for item in await executions(rt)] == [reason, "exited"]


@pytest.mark.parametrize("at", [1, 2])
async def test_a_deletion_of_a_session_is_finished_wherever_its_process_was_killed(
    url: str, open_folder: Path, start: Start, at: int
) -> None:
    """After the deletion of its task, and after its own: then the second one deletes the rest."""
    call = {"tool": "execute_command", "args": {"command": "echo x > file"}}
    agent = Agent("a", model=ScriptedModel([{"calls": [call]}, {"text": "Done."}]), tools=[TOOL])
    options = task_options(open_folder)
    async with Runtime(url, agents=[agent], tasks=options) as rt:
        (pending,) = (await rt.session("s", agent=agent).run("go")).pending
        await rt.approve(pending.id, by="ana")
        assert (await rt.session("s", agent=agent).run()).output == "Done."
    assert (open_folder / "tasks/session_s/workspace/file").exists()
    process = start(f"{DELETE_SESSION}s", sandbox="none", at=at)
    assert await anyio.to_thread.run_sync(process.wait) == -signal.SIGKILL
    async with Runtime(url, agents=[agent], tasks=options) as rt:
        assert not (open_folder / "tasks/session_s").exists()
        with suppress(NotFound):
            await rt.session("s", agent=agent).delete()
        assert [info async for info in rt.sessions()] == []
        assert await TaskRegistry(rt).list() == []


@BOTH
async def test_of_two_processes_one_continues_when_the_other_is_killed(
    url: str, open_folder: Path, start: Start
) -> None:
    """SX.4: one command at a time, also in the moment of the take-over."""
    await prepare(url, open_folder)
    lines = open_folder / "tasks/a/workspace/lines"
    first = start("echo begin first >> lines; sleep 60")
    await wait_until(lines.exists)
    command = "echo begin >> lines; sleep 0.1; echo end >> lines"
    second = start(*[command] * 3)
    third = start(*[command] * 3)
    first.send_signal(signal.SIGKILL)
    for process in (second, third):
        output, _ = await anyio.to_thread.run_sync(process.communicate)
        results = [json.loads(line) for line in output.splitlines()][:-1]
        assert results == [["exited", 0, 0]] * 3
    assert lines.read_text().split("\n") == ["begin first", *["begin", "end"] * 6, ""]


async def test_without_a_sandbox_a_worker_kills_what_a_dead_process_left(
    url: str, open_folder: Path, start: Start
) -> None:
    await prepare(url, open_folder)
    marker = f"62.{os.getpid()}{time.monotonic_ns() % 10**9}"
    process = start(f"setsid sleep {marker} & sleep {marker}", sandbox="none")
    await wait_until(lambda: has_process(marker))
    process.send_signal(signal.SIGKILL)
    process.wait()
    async with opened(url, open_folder, "none") as rt:
        assert (await TaskLifecycle(rt).execute("a", "true")).success
        assert [item.reason for item in await executions(rt)] == ["interrupted", "exited"]
    assert not has_process(marker)


async def test_300_mb_of_output_take_little_memory_and_disk(
    url: str, open_folder: Path, start: Start
) -> None:
    await prepare(url, open_folder)
    output, _ = await anyio.to_thread.run_sync(
        start("true", "head -c 300000000 /dev/zero").communicate
    )
    first, second, memory = (json.loads(line) for line in output.splitlines())
    assert (first, second) == (["exited", 0, 0], ["exited", 0, 300_000_000])
    assert memory["grown_kb"] < 16 * 1024
    assert spool_bytes(open_folder) <= 16 * 1024**2


def spool_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("tasks/a/executions/*/*"))
