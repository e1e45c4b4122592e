"""Model with a context window: it counts tokens and refuses requests that are too long."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perdure import Delta
from perdure.core.conversation.messages import Answer, AssistantMessage, Message, UserMessage
from perdure.errors import ModelError
from perdure.runtime.models import Usage
from perdure.runtime.models.base import Request
from perdure.testing import ScriptedModel


class WindowModel(ScriptedModel):
    """Scripted model that takes `window` tokens at most, of four characters each."""

    def __init__(
        self, turns: Sequence[Mapping[str, Any]], window: int = 10**9, name: str = "acme:large"
    ) -> None:
        super().__init__(turns, name=name)
        self.window = window
        self.refused: list[Request] = []

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        sent = sum(tokens(message) for message in request.messages)
        if sent > self.window:
            self.refused.append(request)
            raise ModelError(f"{sent} tokens are too many", code="MODEL_CONTEXT", hint="shorten it")
        async for piece in super().answer(request):
            if isinstance(piece, Answer):
                yield replace(piece, usage=Usage(input_tokens=sent, output_tokens=1))
            else:
                yield piece

    @property
    def summaries(self) -> list[Request]:
        """Requests for a summary."""
        return [one for one in self.requests if one.purpose == "summary"]

    @property
    def turns_asked(self) -> list[int]:
        """Requested turns, in order."""
        return [one.turn for one in self.requests if one.purpose == "turn"]


def tokens(message: Message) -> int:
    if isinstance(message, AssistantMessage):
        return len(message.text) // 4 + 8 * len(message.calls)
    assert isinstance(message.content, str)
    return len(message.content) // 4


def texts(messages: Sequence[Message]) -> list[str]:
    """Return the contents of the user messages, summaries included."""
    return [str(one.content) for one in messages if isinstance(one, UserMessage)]
