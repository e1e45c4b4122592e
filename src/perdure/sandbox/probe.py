"""Probe of a sandbox: it checks what the host must have, and runs `true` in the sandbox."""

import os
from collections.abc import Awaitable, Callable
from typing import Final

from perdure.errors import SandboxUnavailable
from perdure.sandbox.base import ExecResult, ExecSpec, Guarantee, OnOutput, Probe, RunAs
from perdure.sandbox.rlimits import prlimit_program
from perdure.sandbox.seccomp import seccomp_filter
from perdure.sandbox.users import Obstacle, root_obstacle, user_obstacle

TIMEOUT_MS: Final = 20_000

Run = Callable[[ExecSpec, OnOutput], Awaitable[ExecResult]]


def host_obstacle(run_as: RunAs | None) -> Obstacle | None:
    """Return what the host or the configured user does not have; None if nothing is missing."""
    if prlimit_program() is None:
        return "the program prlimit is not installed", "install util-linux"
    if seccomp_filter() is None:
        return f"perdure has no seccomp filter for {os.uname().machine}", (
            "use a host with an x86_64 or aarch64 processor"
        )
    return user_obstacle(run_as) or root_obstacle(run_as)


async def run_probe(
    name: str, obstacle: Obstacle | None, run: Run, guarantees: frozenset[Guarantee]
) -> Probe:
    """Run `true` in a sandbox, unless something stands in its way, and say whether that works."""
    if obstacle is not None:
        return Probe(name, ok=False, reason=obstacle[0], remedy=obstacle[1])
    spec = ExecSpec(["true"], f"probe-{os.urandom(8).hex()}", TIMEOUT_MS)
    output: list[bytes] = []
    try:
        result = await run(spec, lambda _, chunk: output.append(chunk))
    except SandboxUnavailable as error:
        reason = str(error.details.get("reason", error.message))
        return Probe(name, ok=False, reason=reason, remedy=error.hint or "")
    if result.reason != "exited" or result.exit_code != 0:
        text = b"".join(output).decode(errors="replace").strip()
        reason = f"`true` ended with {result.reason} {result.exit_code}: {text}"
        return Probe(name, ok=False, reason=reason, remedy="see docs/sandbox.md")
    return Probe(name, ok=True, guarantees=guarantees)
