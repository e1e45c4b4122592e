"""A session's conversation, taken apart for its next request: only what is new since the last."""

from typing import Any

from holdfast.core.conversation.messages import Message, UserMessage
from holdfast.core.conversation.repair.incremental import OwnHistory
from holdfast.core.conversation.repair.rewrite import canonical

Canonical = list[tuple[dict[str, Any], bool]]
_BEFORE = UserMessage("…")  # stands for what was there before, since no history begins with answers


class Growing:
    """What `canonical` makes of a history that grows at its end."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._told: Canonical = []
        self._history = OwnHistory()

    def canonical(self, messages: list[Message]) -> Canonical:
        """The same as the function of that name; messages that it had before are not read again.

        A valid turn says the same whatever stands before it. A history that begins otherwise than
        the time before, or is not valid, is taken apart as a whole.
        """
        if messages[: len(self._messages)] != self._messages:
            self._messages, self._told, self._history = [], [], OwnHistory()
        if not self._history.is_sound(messages):
            return canonical(messages)
        new = canonical([_BEFORE, *messages[len(self._messages) :]])[1:]
        self._messages, self._told = messages.copy(), self._told + new
        return self._told
