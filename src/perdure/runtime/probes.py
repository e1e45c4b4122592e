"""A seam for tests: what is really done in the world, told at the moment it begins."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import ParamSpec


@dataclass(frozen=True, slots=True)
class ModelAsked:
    """A request goes to a model."""

    tenant: str
    session_id: str
    turn: int
    up_to: int = 0  # for a summary of what stands up to that event, else 0


@dataclass(frozen=True, slots=True)
class ToolRun:
    """A tool is called."""

    tenant: str
    session_id: str
    turn: int
    call_id: str
    effect_id: str
    tool: str
    may_repeat: bool  # after a crash, because its author or a person said so


P = ParamSpec("P")

Probe = ModelAsked | ToolRun
Told = Callable[[Probe], None]

watcher: ContextVar[Told] = ContextVar("perdure_deeds")


def notify(kind: Callable[P, Probe], *args: P.args, **kwargs: P.kwargs) -> None:
    """Tell whoever watches in this context of a deed; usually nobody does."""
    told = watcher.get(None)
    if told is not None:
        told(kind(*args, **kwargs))
