"""Hooks for tests, called at the moment when an effect begins."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import ParamSpec


@dataclass(frozen=True, slots=True)
class ModelAsked:
    """A request is about to be sent to a model."""

    tenant: str
    session_id: str
    turn: int
    up_to: int = 0  # a summary of the log up to this event, else 0


@dataclass(frozen=True, slots=True)
class ToolRun:
    """A tool is about to be called."""

    tenant: str
    session_id: str
    turn: int
    call_id: str
    effect_id: str
    tool: str
    may_repeat: bool  # after a crash, as its author or an approver allowed
    replies: int = 0  # decisions and answers that the call itself asked for, and got


P = ParamSpec("P")

Probe = ModelAsked | ToolRun
ProbeHandler = Callable[[Probe], None]

probe_handler: ContextVar[ProbeHandler] = ContextVar("perdure_probe")


def notify(kind: Callable[P, Probe], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call the handler of this context, if there is one; outside tests there is none."""
    handler = probe_handler.get(None)
    if handler is not None:
        handler(kind(*args, **kwargs))
