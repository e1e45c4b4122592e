"""Turns and parts: the neutral form of a history while it is repaired.

The block of a part has the shape of an Anthropic content block, which can express all others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

Block = dict[str, Any]
PartKind = Literal["text", "media", "private", "call", "result"]
Role = Literal["system", "user", "assistant"]
Shape = Literal["anthropic", "openai", "responses", "own"]
Shapes = frozenset[Shape]
IssueType = Literal[
    "incomplete_tool_call", "orphaned_tool_result", "invalid_message", "empty_message"
]
NO_ORIGIN: Final[Mapping[str, Any]] = MappingProxyType({})
Action = Literal["removed_tool_calls", "removed_message", "skipped"]

ANTHROPIC: Final[Shapes] = frozenset({"anthropic"})
OPENAI: Final[Shapes] = frozenset({"openai"})
RESPONSES: Final[Shapes] = frozenset({"responses"})
OWN: Final[Shapes] = frozenset({"own"})
EVERY: Final[Shapes] = ANTHROPIC | OPENAI | RESPONSES  # plain text is the same in all of them


@dataclass(frozen=True, slots=True)
class Issue:
    """A defect of a history and the action taken; `ids` are the calls or results concerned."""

    type: IssueType
    index: int  # of the message; -1: the whole history
    action: Action
    details: str
    ids: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Part:
    """Part of a turn. `original` is the block it was read from, or the message if it is one."""

    kind: PartKind
    block: Block
    id: str = ""  # of a call or result, as it was in the history
    unchanged: bool = True  # the same content as the original
    original: object = None
    item: object = None  # of OpenAI Responses: the item that begins with this part
    counterpart: "Part | None" = None  # the result of a call, the call of a result


@dataclass(slots=True, eq=False)
class RepairTurn:
    """Parts of one role that belong together. `original` is the message, if the turn is only that.

    `shapes` are those in which the original is valid.
    """

    role: Role
    parts: list[Part]
    index: int
    shapes: Shapes = EVERY
    original: object = None
    origin: Mapping[str, Any] = field(
        default_factory=lambda: NO_ORIGIN
    )  # provider and model, if known
    changed: bool = False  # a part was dropped, renamed, joined or moved
    native: list[Any] | None = None  # native form, if its content is that of the turn
    paused: bool = False  # the provider continues it if it is the last turn
