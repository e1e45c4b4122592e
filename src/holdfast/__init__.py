"""holdfast: a durable runtime for AI agents.

A session survives shutdown, crash and power loss while a tool, a person or a sub-agent takes
minutes or days, and continues exactly where it stopped.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.app import Runtime
    from holdfast.core.access import Principal
    from holdfast.errors import Conflict, HoldfastError, NotFound, Refused, ToolError
    from holdfast.runtime.agents.agents import Agent
    from holdfast.runtime.models.base import Delta
    from holdfast.runtime.sessions.handle import Session
    from holdfast.runtime.tools.tool import Tool, tool
    from holdfast.runtime.values import Context, Decision, File, PendingCall
    from holdfast.runtime.views import Event, Result
    from holdfast.serve.http.app import asgi

_HOMES = {
    "Agent": "holdfast.runtime.agents.agents",
    "Conflict": "holdfast.errors",
    "Context": "holdfast.runtime.values",
    "Decision": "holdfast.runtime.values",
    "Delta": "holdfast.runtime.models.base",
    "Event": "holdfast.runtime.views",
    "File": "holdfast.runtime.values",
    "HoldfastError": "holdfast.errors",
    "NotFound": "holdfast.errors",
    "PendingCall": "holdfast.runtime.values",
    "Principal": "holdfast.core.access",
    "Refused": "holdfast.errors",
    "Result": "holdfast.runtime.views",
    "Runtime": "holdfast.app",
    "Session": "holdfast.runtime.sessions.handle",
    "Tool": "holdfast.runtime.tools.tool",
    "ToolError": "holdfast.errors",
    "asgi": "holdfast.serve.http.app",
    "tool": "holdfast.runtime.tools.tool",
}

__all__ = [
    "Agent",
    "Conflict",
    "Context",
    "Decision",
    "Delta",
    "Event",
    "File",
    "HoldfastError",
    "NotFound",
    "PendingCall",
    "Principal",
    "Refused",
    "Result",
    "Runtime",
    "Session",
    "Tool",
    "ToolError",
    "asgi",
    "tool",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: `import holdfast` itself loads nothing."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
