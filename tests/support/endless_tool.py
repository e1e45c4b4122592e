"""Tool that runs until it is cancelled, for sessions that lose their lease."""

from typing import Any

import anyio

from perdure import Tool, tool


def endless_tool() -> tuple[Tool[..., Any], anyio.Event, anyio.Event]:
    """Return the tool `endless`, an event for its start and one for its cancellation."""
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
