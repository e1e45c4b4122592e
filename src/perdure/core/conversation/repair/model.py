"""What a history is made of while it is repaired: turns of parts, whatever wrote them.

A part's block has the shape of an Anthropic content block, which can say all that the others can.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

Block = dict[str, Any]
Kind = Literal["text", "media", "private", "call", "result"]
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
EVERY: Final[Shapes] = ANTHROPIC | OPENAI | RESPONSES  # plain text, which they all write alike


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing that was wrong, and what was done. `ids` are the calls or results it is about."""

    type: IssueType
    index: int  # of the message it was found in; -1 for the whole
    action: Action
    details: str
    ids: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Part:
    """A piece of a turn. `given` is its own block, or its message if it is one by itself."""

    kind: Kind
    block: Block
    id: str = ""  # of a call or result, as given
    same: bool = True  # whether it says just what was given
    given: object = None
    item: object = None  # of OpenAI Responses: the item that it is, or in which it stands first
    answer: "Part | None" = None  # of a call: its result


@dataclass(slots=True, eq=False)
class Turn:
    """Parts that one side said together. `given` is the message, if the turn is just that.

    `shapes` are those in which it may stand as it was given.
    """

    role: Role
    parts: list[Part]
    at: int
    shapes: Shapes = EVERY
    given: object = None
    more: Mapping[str, Any] = field(
        default_factory=lambda: NO_ORIGIN
    )  # provider and model, where known
    changed: bool = False  # whether anything was dropped, renamed, joined or moved
    native: list[Any] | None = None  # what its provider sent, if it says just what the turn says
    paused: bool = False  # its provider goes on with it, if nothing comes after it
