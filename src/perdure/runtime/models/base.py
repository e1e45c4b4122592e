"""The protocol of models: one streamed request per turn."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from perdure.core.conversation.messages import Answer, Message
from perdure.core.conversation.repair import IncrementalCanonical
from perdure.views.events import Delta


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """A model request: everything that the model needs for one turn."""

    session_id: str
    agent: str
    turn: int  # 1 for the first response of the session
    instructions: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    output_schema: Mapping[str, Any] | None = None
    purpose: Literal["turn", "summary"] = "turn"  # the last message asks for a summary
    read_file: Callable[[str], Awaitable[bytes | None]] | None = None  # by digest; None: gone
    # Keeps the messages of the turns before, for the models that come with perdure.
    _canonical: IncrementalCanonical | None = field(default=None, repr=False, compare=False)


@runtime_checkable
class Model(Protocol):
    """A model. The last item that `answer` yields is the complete Answer."""

    @property
    def name(self) -> str:
        """Name of the form `provider:model`; a change of it drops thinking blocks, nothing else."""
        ...

    def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """Request one turn. Raises ModelError, with a hint if the user can fix the cause."""
        ...
