"""A tool that runs until it is called off, for sessions whose lease is lost meanwhile."""

from typing import Any

import anyio

from perdure import Tool, tool


def endless_tool() -> tuple[Tool[..., Any], anyio.Event, anyio.Event]:
    """The tool `endless`, and what is set once it has begun and once it was called off."""
    begun, stopped = anyio.Event(), anyio.Event()

    @tool
    async def endless() -> str:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()
        return "never"

    return endless, begun, stopped
