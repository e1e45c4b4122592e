"""Callers for which the answer of a background agent is reserved: they take it, or leave it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio

from perdure.core.session.child_tasks import ChildTask
from perdure.runtime.sessions.background import Gone, WaitingCaller, never
from perdure.runtime.sessions.service import Service

_GONE: Final = "perdure.mcp_gone"  # in the scope of an HTTP request


def noting_gone(scope: Any, receive: Any) -> Any:
    """Return a `receive` that notes in the scope when the client has disconnected."""
    gone = scope[_GONE] = anyio.Event()

    async def receive_and_note() -> Any:
        message = await receive()
        if message["type"] == "http.disconnect":
            gone.set()
        return message

    return receive_and_note


def gone_of(request: Any) -> Gone:
    """Return what waits until the client of a request is gone; on stdio the server ends then."""
    gone = None if request is None else request.scope.get(_GONE)
    return never if gone is None else gone.wait


@asynccontextmanager
async def waiting_caller(
    service: Service, task: ChildTask | None, gone: Gone
) -> AsyncIterator[WaitingCaller | None]:
    """Return a context in which a caller waits for an answer; None: nothing is reserved for it.

    The parent is notified of what it did not take, and as soon as the client is gone.
    """
    if task is None:
        yield None
        return
    async with service.background.waiting_caller(task) as caller:
        watch = asyncio.ensure_future(_leave_when_gone(caller, gone))
        try:
            yield caller
        finally:
            watch.cancel()


async def _leave_when_gone(caller: WaitingCaller, gone: Gone) -> None:
    await gone()
    await caller.leave()
