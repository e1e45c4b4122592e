"""Calls from tools into the event loop of the runtime.

An `async def` tool runs in that loop and awaits them. A plain function runs in a worker thread,
where nothing can be awaited: there the call returns when it is done.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec

from perdure.views.calls import COMPLETED

P = ParamSpec("P")


def callable_from_threads(
    function: Callable[P, Coroutine[Any, Any, None]],
) -> Callable[P, Awaitable[None]]:
    """Return a function that tools may call with or without a running event loop.

    In a loop the caller awaits what it returns; in a thread without one, the call is complete when
    it returns, and raises what the function raises. Call this in the loop of the runtime.
    """
    home = asyncio.get_running_loop()

    def call(*args: P.args, **kwargs: P.kwargs) -> Awaitable[None]:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run_coroutine_threadsafe(function(*args, **kwargs), home).result()
            return COMPLETED
        if loop is home:
            return function(*args, **kwargs)
        future = asyncio.run_coroutine_threadsafe(function(*args, **kwargs), home)
        return asyncio.wrap_future(future, loop=loop)  # a loop that the tool runs in its thread

    return call
