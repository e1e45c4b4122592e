"""The history of a session of our own while it grows: what was looked at once is not again."""

from typing import Any, Final

from perdure.core.conversation.messages import (
    AskedCall,
    AssistantMessage,
    Message,
    ToolMessage,
    UserMessage,
)
from perdure.core.conversation.repair.call_ids import is_good, is_good_name
from perdure.core.conversation.repair.json_values import is_clean, is_plain
from perdure.core.conversation.repair.quick_check import is_said
from perdure.core.conversation.repair.rewrite import canonical, repair
from perdure.core.log.events import Content

_PARTS: Final = frozenset({"text", "file"})


class IncrementalRepair:
    """Repairs what a log tells, turn after turn; valid turns cost their length once."""

    def __init__(self) -> None:
        self._settled = 0  # messages that were found valid and will not change any more
        self._ids: set[str] = set()

    def repaired(self, messages: list[Message]) -> list[Message]:
        """The messages as every provider takes them: the same ones, as far as they are valid.

        They are those of the time before, with more at the end. No model is asked while a call is
        open, so one without a result here was lost, and its doubt is told.
        """
        if self.is_sound(messages):
            return messages
        return repair(messages, unanswered="tell").messages

    def is_sound(self, messages: list[Message]) -> bool:
        """Whether they are certainly valid; those of the time before, with more at the end."""
        place = self._settled
        turns: list[tuple[int, list[str]]] = []
        ids: set[str] = set()
        while place < len(messages):
            message = messages[place]
            if type(message) is AssistantMessage and place > 0:
                asked = [call.id for call in message.calls]
                end = place + 1 + len(asked)
                known = not self._ids.isdisjoint(asked) or not ids.isdisjoint(asked)
                if known or not _is_turn(message, messages[place + 1 : end]):
                    return False
                turns.append((place, asked))
                ids.update(asked)
                place = end
            elif type(message) is UserMessage and _is_content(message.content):
                place += 1
            else:
                return False
        self._settle(turns)
        return True

    def _settle(self, turns: list[tuple[int, list[str]]]) -> None:
        """All turns but the last stand for good."""
        if turns:
            self._settled = turns[-1][0]
            for _, asked in turns[:-1]:
                self._ids.update(asked)


def _is_turn(answer: AssistantMessage, results: list[Message]) -> bool:
    asked = [call.id for call in answer.calls]
    if len(results) < len(asked) or len(set(asked)) < len(asked):
        return False
    if not is_clean(answer.text) or not (answer.calls or answer.output or is_said(answer.text)):
        return False
    return all(
        _is_call(call) and _answers(result, call)
        for call, result in zip(answer.calls, results, strict=True)
    )


def _is_call(call: AskedCall) -> bool:
    return is_good(call.id) and is_good_name(call.tool) and is_plain(call.params)


def _answers(result: Message, call: AskedCall) -> bool:
    if type(result) is not ToolMessage or result.call_id != call.id:
        return False
    content = result.content
    if type(content) is str:
        return is_clean(content) and bool(content or not result.is_error)
    return _is_content(content)


def _is_content(content: Content) -> bool:
    if type(content) is str:
        return is_said(content)
    return type(content) is list and bool(content) and all(map(_is_part, content))


def _is_part(part: Any) -> bool:
    if type(part) is not dict or part.get("type") not in _PARTS or not is_plain(part):
        return False
    if part["type"] == "text":
        return type(part.get("text")) is str and is_said(part["text"])
    return any(type(part.get(key)) is str for key in ("blob", "url", "data"))


Canonical = list[tuple[dict[str, Any], bool]]
_BEFORE = UserMessage("…")  # stands for what was there before, since no history begins with answers


class IncrementalCanonical:
    """What `canonical` makes of a history that grows at its end."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._told: Canonical = []
        self._history = IncrementalRepair()

    def canonical(self, messages: list[Message]) -> Canonical:
        """The same as the function of that name; messages that it had before are not read again.

        A valid turn says the same whatever stands before it. A history that begins otherwise than
        the time before, or is not valid, is taken apart as a whole.
        """
        if messages[: len(self._messages)] != self._messages:
            self._messages, self._told, self._history = [], [], IncrementalRepair()
        if not self._history.is_sound(messages):
            return canonical(messages)
        new = canonical([_BEFORE, *messages[len(self._messages) :]])[1:]
        self._messages, self._told = messages.copy(), self._told + new
        return self._told
