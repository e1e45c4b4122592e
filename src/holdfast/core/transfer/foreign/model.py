"""What a foreign file holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Said:
    """One message, in the shape of whichever provider, and when it was said (0: not known).

    `by_id` has the instants of its calls or results, where they are known one by one.
    """

    message: Any
    at: int = 0
    by_id: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Foreign:
    """One session of another program."""

    format: str
    said: tuple[Said, ...]
    session_id: str | None = None
    agent: str | None = None
    others: tuple[str, ...] = ()  # agents whose conversations are in it too
    notes: tuple[str, ...] = ()  # what was left out while reading


def text_in(value: object) -> str | None:
    """The value if it is a text with something in it."""
    return value if isinstance(value, str) and value else None


def dict_in(value: object) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def list_in(value: object) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def kind_in(value: object) -> str:
    """The `type` of an object; of what has none, an empty one."""
    return text_in(dict_in(value).get("type")) or ""
