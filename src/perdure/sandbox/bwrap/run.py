"""One run of bwrap: its start, what must be ready before the command starts, and its result."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from perdure.errors import SandboxUnavailable
from perdure.sandbox.base import (
    TIMEOUT_EXIT_CODE,
    ExecResult,
    ExecSpec,
    Guarantee,
    OnOutput,
    Reason,
    RunAs,
    ServeProxy,
)
from perdure.sandbox.bwrap.command_line import bwrap_environment, command_line
from perdure.sandbox.bwrap.diagnosis import INSTALL, bwrap_program, explain
from perdure.sandbox.bwrap.listener import NetworkListeners
from perdure.sandbox.bwrap.namespace import PidNamespace
from perdure.sandbox.bwrap.start import START_S, WAIT_WORDS, StartSignal
from perdure.sandbox.bwrap.status import StatusSocket
from perdure.sandbox.cgroup import CommandGroup, DelegatedGroups
from perdure.sandbox.process import ChildProcess, Inheritance, ProcessSpec
from perdure.sandbox.ro_paths import ReadOnlyPath
from perdure.sandbox.stop import KILL_S, Stopper, exit_of, run_to_end
from perdure.sandbox.users import user_arguments
from perdure.sandbox.workspace import watch_disk

GUARANTEES: Final[frozenset[Guarantee]] = frozenset(
    {"fs", "net", "pidns", "syscalls", "kill_tree", "die_with_runtime", "nproc"}
)
SIGKILL: Final = 9


@dataclass(frozen=True, slots=True)
class HostParts:
    """Parts of the host that a run uses."""

    run_as: RunAs | None = None
    ro_paths: tuple[ReadOnlyPath, ...] = ()
    proxy: tuple[NetworkListeners, ServeProxy] | None = None
    groups: DelegatedGroups | None = None


@dataclass(frozen=True, slots=True)
class _Started:
    """A started bwrap and what belongs to it."""

    bwrap: ChildProcess
    status: StatusSocket
    signal: StartSignal
    namespace: PidNamespace
    gate: int | None  # a byte into it lets the command start


async def run_confined(
    parts: HostParts,
    workspace: Path | None,
    spec: ExecSpec,
    on_output: OnOutput,
    cancel: asyncio.Event | None = None,
) -> ExecResult:
    """Run a program in bwrap; without a workspace, in an empty one that is kept in memory."""
    oom_kills = _host_oom_kills()
    async with AsyncExitStack() as stack:
        started = _start(parts, workspace, spec, on_output, stack)
        stack.push_async_callback(_end, started)
        group = await _prepare(parts, spec, started, stack)
        await started.signal.send(started.status)
        reason = await run_to_end(
            started.bwrap,
            Stopper(started.namespace.terminate, started.namespace.kill),
            timeout_ms=spec.timeout_ms,
            cancel=cancel,
            disk_limit=None if workspace is None else watch_disk(workspace, spec.limits.disk_bytes),
        )
        await started.namespace.wait_empty()
        truncated = await started.bwrap.drain()
        started.status.read()
        code = _exit_code(started, reason, parts.run_as)
        if reason == "exited" and _is_oom(code, group, oom_kills):
            reason = "oom"
        applied = parts.groups.applied(spec.limits) if group and parts.groups else frozenset()
        return _result(started.bwrap, code, reason, truncated, _guarantees(spec) | applied)


def _start(
    parts: HostParts,
    workspace: Path | None,
    spec: ExecSpec,
    on_output: OnOutput,
    stack: AsyncExitStack,
) -> _Started:
    program = bwrap_program()
    if program is None:
        raise SandboxUnavailable(
            "bwrap is no longer installed", hint=INSTALL, details={"started": False}
        )
    status, signal, inheritance = StatusSocket(), StartSignal(), Inheritance()
    stack.callback(status.close)
    stack.callback(signal.close)
    stack.callback(inheritance.close)
    pipes = ["--json-status-fd", str(status.writer)]
    pipes += ["--sync-fd", inheritance.add(status.copy_reader())]
    gate, gate_options = _gate(parts, spec, inheritance, stack)
    waiting = replace(spec, argv=[*WAIT_WORDS, *spec.argv])
    argv = command_line(
        program, waiting, workspace, parts.ro_paths, inheritance, [*pipes, *gate_options]
    )
    inherited = [status.writer, *inheritance.descriptors]
    environment = bwrap_environment(spec.run_id)
    words = [*user_arguments(parts.run_as), *argv]
    bwrap = ChildProcess(
        ProcessSpec(words, environment, Path("/"), None, signal.stdin, inherited), on_output
    )
    stack.callback(bwrap.close)
    inheritance.close()
    status.close_writer()
    signal.close_theirs()
    namespace = PidNamespace(bwrap, status)
    stack.callback(namespace.close)
    return _Started(bwrap, status, signal, namespace, gate)


def _gate(
    parts: HostParts, spec: ExecSpec, inheritance: Inheritance, stack: AsyncExitStack
) -> tuple[int | None, list[str]]:
    """Create the pipe that bwrap waits on, if something must be ready before the command."""
    if spec.network.mode != "allow" and not _is_grouped(parts, spec):
        return None, []
    reader, writer = os.pipe()
    stack.callback(os.close, writer)
    return writer, ["--block-fd", inheritance.add(reader)]


def _is_grouped(parts: HostParts, spec: ExecSpec) -> bool:
    return parts.groups is not None and bool(parts.groups.applied(spec.limits))


async def _prepare(
    parts: HostParts, spec: ExecSpec, started: _Started, stack: AsyncExitStack
) -> CommandGroup | None:
    """Put the waiting sandbox into its control group and its proxy into its network."""
    if started.gate is None:
        return None
    await started.status.wait_started(START_S)
    pid = started.status.first_pid
    if pid is None:
        return None  # bwrap has failed, and says why at its end
    group = None
    if parts.groups is not None and _is_grouped(parts, spec):
        group = _grouped(parts.groups, spec, pid)
        stack.push_async_callback(group.remove)
    if spec.network.mode == "allow" and parts.proxy is not None:
        listeners, serve = parts.proxy
        listener = await listeners.open(pid, started.status.net_namespace or 0)
        await stack.enter_async_context(_served(serve, listener, spec.network.allow))
    stack.push_async_callback(_end, started)  # before the proxy and the group are taken away
    os.write(started.gate, b"1")
    return group


def _grouped(groups: DelegatedGroups, spec: ExecSpec, pid: int) -> CommandGroup:
    try:
        group = groups.create(spec.run_id, spec.limits)
        try:
            group.add(pid)
        except OSError:
            group.remove_now()
            raise
    except OSError as error:
        raise SandboxUnavailable(
            f"the control group of the command could not be set up: {error}",
            hint="check the delegation of control groups (docs/sandbox.md)",
            details={"started": False},
        ) from error
    return group


@asynccontextmanager
async def _served(
    serve: ServeProxy, listener: socket.socket, allow: tuple[str, ...]
) -> AsyncIterator[None]:
    """Serve the proxy as long as the sandbox runs."""
    server = asyncio.ensure_future(serve(listener, allow))
    try:
        yield
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)
        listener.close()


async def _end(started: _Started) -> None:
    """Leave nothing running, whatever happened before."""
    if not started.bwrap.exited.done():
        started.namespace.kill()
        if not await started.bwrap.wait(KILL_S):
            started.bwrap.kill()
            await started.bwrap.wait()
    await started.namespace.wait_empty()


def _exit_code(started: _Started, reason: Reason, run_as: RunAs | None) -> int:
    """Return the exit code that bwrap reported. Without a report, the sandbox has failed."""
    if started.status.exit_code is not None:
        return started.status.exit_code
    if reason != "exited":
        return 128 + SIGKILL
    user = f"uid {os.geteuid() if run_as is None else run_as.uid}"
    cause, remedy = explain(started.bwrap.error_tail.decode(errors="replace"), user)
    raise SandboxUnavailable(
        f"the sandbox failed: {cause}",
        hint=remedy,
        details={
            "sandbox": "bwrap",
            "reason": cause,
            "remedy": remedy,
            "started": started.signal.was_sent,
        },
    )


def _is_oom(code: int, group: CommandGroup | None, before: int) -> bool:
    """Return whether a command failed because the kernel killed processes for lack of memory."""
    if group is not None and group.oom_kills():
        return code != 0
    return code == 128 + SIGKILL and _host_oom_kills() > before


def _host_oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory; 0 if it does not say."""
    with suppress(OSError, ValueError):
        counters = Path("/proc/vmstat").read_bytes().partition(b"\noom_kill ")[2]
        return int(counters.partition(b"\n")[0])
    return 0


def _guarantees(spec: ExecSpec) -> frozenset[Guarantee]:
    return GUARANTEES - {"net"} if spec.network.mode == "host" else GUARANTEES


def _result(
    bwrap: ChildProcess,
    code: int,
    reason: Reason,
    truncated: bool,
    guarantees: frozenset[Guarantee],
) -> ExecResult:
    exit_code, number = exit_of(code)
    return ExecResult(
        exit_code=TIMEOUT_EXIT_CODE if reason == "timeout" else exit_code,
        signal=number,
        reason=reason,
        stdout_bytes=bwrap.size("stdout"),
        stderr_bytes=bwrap.size("stderr"),
        truncated=truncated,
        duration_ms=round((time.monotonic() - bwrap.started_at) * 1000),
        sandbox="bwrap",
        guarantees=guarantees,
    )
