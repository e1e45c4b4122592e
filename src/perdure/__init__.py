"""perdure: a durable runtime for AI agents.

A session survives shutdown, crash and power loss while a tool, a person or a sub-agent takes
minutes or days, and continues exactly where it stopped.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.app import Runtime
    from perdure.core.pending.record import PendingResult
    from perdure.core.roles import Principal
    from perdure.errors import Conflict, NotFound, PerdureError, Refused, ToolError
    from perdure.runtime.agents.agent import Agent
    from perdure.runtime.requests import ApprovalRequired, InputRequired
    from perdure.runtime.sessions.handle import Session
    from perdure.runtime.tools.approval import Approval
    from perdure.runtime.tools.tool import Tool, tool
    from perdure.runtime.values import Context
    from perdure.serve.assembly import asgi
    from perdure.views.calls import Decision, PendingCall
    from perdure.views.events import Delta, Event
    from perdure.views.sessions import Result
    from perdure.views.tasks import BackgroundTask
    from perdure.views.values import File

_HOMES = {
    "Agent": "perdure.runtime.agents.agent",
    "Approval": "perdure.runtime.tools.approval",
    "ApprovalRequired": "perdure.runtime.requests",
    "BackgroundTask": "perdure.views.tasks",
    "Conflict": "perdure.errors",
    "Context": "perdure.runtime.values",
    "Decision": "perdure.views.calls",
    "Delta": "perdure.views.events",
    "Event": "perdure.views.events",
    "File": "perdure.views.values",
    "InputRequired": "perdure.runtime.requests",
    "PerdureError": "perdure.errors",
    "NotFound": "perdure.errors",
    "PendingCall": "perdure.views.calls",
    "PendingResult": "perdure.core.pending.record",
    "Principal": "perdure.core.roles",
    "Refused": "perdure.errors",
    "Result": "perdure.views.sessions",
    "Runtime": "perdure.app",
    "Session": "perdure.runtime.sessions.handle",
    "Tool": "perdure.runtime.tools.tool",
    "ToolError": "perdure.errors",
    "asgi": "perdure.serve.assembly",
    "tool": "perdure.runtime.tools.tool",
}

__all__ = [
    "Agent",
    "Approval",
    "ApprovalRequired",
    "BackgroundTask",
    "Conflict",
    "Context",
    "Decision",
    "Delta",
    "Event",
    "File",
    "InputRequired",
    "NotFound",
    "PendingCall",
    "PendingResult",
    "PerdureError",
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
    """Import a name when it is first used: `import perdure` itself loads nothing."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
