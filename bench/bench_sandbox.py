"""Cost of commands in a sandbox beside the bare command line of bwrap, in one run.

The bare side starts bwrap with the same options and waits for it. All sides take turns, so that
other load on the machine affects all of them.
"""

import asyncio
import os
import pwd
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.report import Section, Table, number

from perdure import Runtime
from perdure.options import TaskOptions
from perdure.sandbox.base import ExecSpec, NetworkSettings, RunAs
from perdure.sandbox.bwrap import BwrapSandbox
from perdure.sandbox.bwrap.command_line import bwrap_environment, command_line
from perdure.sandbox.bwrap.diagnosis import bwrap_program
from perdure.sandbox.process import Inheritance
from perdure.sandbox.users import user_arguments
from perdure.tasks import TaskLifecycle
from perdure.tasks.proxy.server import AllowListProxy

Work = Callable[[], Awaitable[Any]]
USER: Final = "nobody"
AT_ONCE: Final = 50
ABOUT: Final = """`true` in a sandbox. *bare* is the program bwrap with the same options, started
and awaited; *sandbox* adds its status, output, limits and the end of all its processes; *execute*
adds a durable start and a durable end (SQLite, synced); *allow-list* has a proxy in the empty
network of the command."""


@dataclass
class Side:
    """One way to run `true`, with what each run took."""

    name: str
    work: Work
    bound: str
    times: list[float] = field(default_factory=list)
    cpu: float = 0.0

    async def run(self) -> None:
        """Measure one run."""
        start = time.perf_counter()
        with self.counted():
            await self.work()
        self.times.append(time.perf_counter() - start)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Add the CPU time of what happens meanwhile."""
        cpu = cpu_seconds()
        yield
        self.cpu += cpu_seconds() - cpu


def cpu_seconds() -> float:
    """Return the CPU time of this process and of the children that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def bare_command(workspace: Path, run_as: RunAs | None) -> Callable[[], subprocess.Popen[bytes]]:
    """Return a function that starts bwrap with the command line of the sandbox."""
    program = bwrap_program()
    assert program is not None, "install bubblewrap"

    def start() -> subprocess.Popen[bytes]:
        inheritance = Inheritance()
        spec = ExecSpec(["/bin/sh", "-c", "true"], "bench")
        argv = command_line(program, spec, workspace, (), inheritance, [])
        process = subprocess.Popen(
            [*user_arguments(run_as), *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=bwrap_environment("bench"),
            pass_fds=inheritance.descriptors,
        )
        inheritance.close()
        return process

    return start


def finish(process: subprocess.Popen[bytes]) -> None:
    """Wait for a bare bwrap."""
    _, errors = process.communicate()
    assert process.returncode == 0, errors


async def measure_all(folder: Path, quick: bool) -> list[list[str]]:
    """Return the rows: one command after the other, and fifty at once."""
    entry = pwd.getpwnam(USER)
    run_as = RunAs(entry.pw_uid, entry.pw_gid) if os.geteuid() == 0 else None
    workspace = folder / "workspace"
    workspace.mkdir()
    start = bare_command(workspace, run_as)
    sandbox = BwrapSandbox(run_as, serve_proxy=AllowListProxy().serve)
    options: TaskOptions = {"run_as": USER} if run_as else {}
    async with Runtime(f"sqlite:///{folder}/perdure.db", tasks=options) as rt:
        lifecycle = TaskLifecycle(rt)

        async def bare() -> None:
            finish(start())

        async def confined(network: NetworkSettings) -> None:
            spec = ExecSpec(["/bin/sh", "-c", "true"], f"bench-{time.time_ns()}", network=network)
            result = await sandbox.exec(workspace, spec, lambda *_: None)
            assert result.exit_code == 0

        task_ids = [await new_task(lifecycle, f"bench-{index}") for index in range(AT_ONCE)]

        async def execute(task_id: str) -> None:
            result = await lifecycle.execute(task_id, "true")
            assert result.success, result

        allow = NetworkSettings("allow", ("packages.example.org",))
        sides = [
            Side("bare", bare, ""),
            Side("sandbox", lambda: confined(NetworkSettings()), ""),
            Side("execute", lambda: execute(task_ids[0]), "2"),
            Side("allow-list", lambda: confined(allow), "3"),
        ]
        await alternate(sides, 5 if quick else 100)
        with sides[-1].counted():  # the process that was kept for the sockets ends here
            sandbox.close()
        crowd = [
            Side("bare, 50 at once", crowd_of(start), ""),
            Side("execute, 50 at once", lambda: gather(map(execute, task_ids)), "1.5"),
        ]
        await alternate(crowd, 1 if quick else 7)
    return [*rows(sides), *rows(crowd)]


def crowd_of(start: Callable[[], subprocess.Popen[bytes]]) -> Work:
    """Return work that runs fifty bare commands at once."""

    async def work() -> None:
        for process in [start() for _ in range(AT_ONCE)]:
            finish(process)

    return work


async def gather(works: Any) -> None:
    """Run works at once."""
    await asyncio.gather(*works)


async def new_task(lifecycle: TaskLifecycle, name: str) -> str:
    """Return the id of a running task."""
    task = await lifecycle.create_task({"name": name})
    await lifecycle.start_task(task.id, "agent")
    return task.id


async def alternate(sides: list[Side], rounds: int) -> None:
    """Run the sides in turns; the first round does not count."""
    for index in range(rounds + 1):
        for side in sides:
            await side.run()
            if index == 0:
                side.times.clear()
                side.cpu = 0.0


def rows(sides: list[Side]) -> list[list[str]]:
    """Return the rows of sides, as ratios to the first one."""
    bare = sides[0]
    cells = []
    for side in sides:
        p50, cpu = statistics.median(side.times), side.cpu / len(side.times)
        bare_p50, bare_cpu = statistics.median(bare.times), bare.cpu / len(bare.times)
        ratios = [f"{p50 / bare_p50:.2f}x", f"{cpu / bare_cpu:.2f}x"]
        if side is bare:
            ratios = ["", ""]
        milliseconds = [f"{number(p50 * 1000)} ms", ratios[0], f"{number(cpu * 1000)} ms"]
        bound = f"at most {side.bound}x" if side.bound else ""
        cells.append([side.name, *milliseconds, ratios[1], bound])
    return cells


def measure(*, quick: bool) -> Section:
    """Return the section."""
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        table = asyncio.run(measure_all(folder, quick))
    head = ("`true`", "p50", "to bare", "CPU", "to bare", "aim")
    return Section("Commands in a sandbox", [ABOUT, Table(head, table)])
