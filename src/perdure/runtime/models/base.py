"""What a model is to the engine: one streamed request per turn."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from perdure.core.conversation.messages import Answer, Message
from perdure.core.conversation.repair import IncrementalCanonical

DeltaKind = Literal["text", "thinking", "args", "progress", "reset"]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model is shown it."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """Everything that one turn is asked with."""

    session_id: str
    agent: str
    turn: int  # 1 for the first answer of the session
    instructions: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    output_schema: Mapping[str, Any] | None = None
    purpose: Literal["turn", "summary"] = "turn"  # a summary is asked for by the last message
    growing: IncrementalCanonical | None = (
        None  # what was made of the conversation for the turn before
    )
    read_file: Callable[[str], Awaitable[bytes | None]] | None = None  # by digest; None: it is gone


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of an answer while it comes; not durable, superseded by the answer's event."""

    session_id: str
    turn: int
    kind: DeltaKind
    text: str
    call_id: str | None = None


@runtime_checkable
class Model(Protocol):
    """Something that answers. The last thing an answer's stream yields is the whole Answer."""

    @property
    def name(self) -> str:
        """`provider:model`; a change of it drops thinking blocks, nothing else."""
        ...

    def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """Ask for one turn. Raises ModelError, with a hint where something can be done."""
        ...
