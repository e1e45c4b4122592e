"""Run of an agent without a store: a runtime in memory that lives as long as the run."""

import asyncio
from typing import Any, TypeVar

import anyio

from perdure.app.runtime import Runtime
from perdure.errors import Refused
from perdure.runtime.agents.agent import Agent
from perdure.views.base import replace
from perdure.views.findings import Finding
from perdure.views.sessions import Result
from perdure.views.values import Content, Duration

T = TypeVar("T")


async def run_alone(
    agent: Agent[T],
    message: Content,
    *,
    deps: Any = None,
    timeout: Duration | None = None,  # noqa: ASYNC109 - ends the run, and never raises
) -> Result[T]:
    """Run an agent once and return the result; a run that `timeout` ends is cancelled."""
    async with _unwatched(Runtime("memory:", agents=[agent], deps=deps)) as rt:
        session = rt.session(agent=agent)
        result = await session.run(message, timeout=timeout)
        if result.state == "running":
            result = await session.cancel(reason=f"it ran longer than {timeout}")
        return _with_hint(result) if result.state == "waiting" else result


def run_alone_sync(
    agent: Agent[T],
    message: Content,
    *,
    deps: Any = None,
    timeout: Duration | None = None,
) -> Result[T]:
    """Run an agent once, in a program that is not async."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return anyio.run(lambda: run_alone(agent, message, deps=deps, timeout=timeout))
    raise Refused(
        "run_sync was called where an event loop is running",
        code="LOOP_RUNNING",
        hint="write: result = await agent.run(…)",
    )


def _unwatched(rt: Runtime) -> Runtime:
    """Return a runtime, not open yet, without the thread that reports blocks of the event loop.

    Its one session would be the only one that they delay.
    """
    rt._service.drives.background.is_watched = False  # noqa: SLF001 - same package
    return rt


def _with_hint(result: Result[T]) -> Result[T]:
    """Return a result that waits, with a first finding that says how it could continue."""
    hint = Finding(
        code="NOT_STORED",
        severity="warning",
        subject=result.session_id,
        text="agent.run keeps nothing, so nobody can decide about this call any more; "
        'use Runtime("sqlite:///perdure.db", agents=[…]) and rt.session(…).run(…)',
        missing="a Runtime with a store",
    )
    return replace(result, findings=(hint, *result.findings))
