"""holdfast: a durable runtime for AI agents.

A session survives shutdown, crash and power loss while a tool, a person or a sub-agent takes
minutes or days, and continues exactly where it stopped.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.app import Runtime
    from holdfast.core.access import Principal
    from holdfast.errors import Conflict, HoldfastError, NotFound, Refused, ToolError
    from holdfast.runtime.agents import Agent
    from holdfast.runtime.models.base import Delta
    from holdfast.runtime.results import Event, Result
    from holdfast.runtime.session import Session
    from holdfast.runtime.tools import Tool, tool
    from holdfast.runtime.values import Context, Decision, File, PendingCall
    from holdfast.serve.http import asgi

_HOMES = {
    "Agent": "holdfast.runtime.agents",
    "Conflict": "holdfast.errors",
    "Context": "holdfast.runtime.values",
    "Decision": "holdfast.runtime.values",
    "Delta": "holdfast.runtime.models.base",
    "Event": "holdfast.runtime.results",
    "File": "holdfast.runtime.values",
    "HoldfastError": "holdfast.errors",
    "NotFound": "holdfast.errors",
    "PendingCall": "holdfast.runtime.values",
    "Principal": "holdfast.core.access",
    "Refused": "holdfast.errors",
    "Result": "holdfast.runtime.results",
    "Runtime": "holdfast.app",
    "Session": "holdfast.runtime.session",
    "Tool": "holdfast.runtime.tools",
    "ToolError": "holdfast.errors",
    "asgi": "holdfast.serve.http",
    "tool": "holdfast.runtime.tools",
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
