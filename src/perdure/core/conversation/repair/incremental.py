"""Repair of a growing history of perdure: each message is checked only once."""

from typing import Any, Final

from perdure.core.conversation.messages import (
    AssistantMessage,
    Message,
    RequestedCall,
    ToolMessage,
    UserMessage,
)
from perdure.core.conversation.repair.call_ids import is_valid_id, is_valid_name
from perdure.core.conversation.repair.json_values import is_json_value, is_valid_text
from perdure.core.conversation.repair.quick_check import has_text
from perdure.core.conversation.repair.rewrite import canonical, repair
from perdure.core.log.events import Content

_PART_TYPES: Final = frozenset({"text", "file"})


class IncrementalRepair:
    """Repairs the messages of a log turn after turn; checks a valid turn once."""

    def __init__(self) -> None:
        self._valid_count = 0  # messages that are valid and will not change any more
        self._ids: set[str] = set()

    def repair(self, messages: list[Message]) -> list[Message]:
        """Return messages that every provider accepts: the same objects, if they are valid.

        They are those of the previous call with more at the end. No model request is made while a
        call is open, so a call without a result was lost; its result reports the interruption.
        """
        if self.is_valid(messages):
            return messages
        return repair(messages, unanswered="tell").messages

    def is_valid(self, messages: list[Message]) -> bool:
        """Report whether messages, those of the previous call with more at the end, are valid."""
        index = self._valid_count
        turns: list[tuple[int, list[str]]] = []
        ids: set[str] = set()
        while index < len(messages):
            message = messages[index]
            if type(message) is AssistantMessage and index > 0:
                call_ids = [call.id for call in message.calls]
                end = index + 1 + len(call_ids)
                is_reused = not self._ids.isdisjoint(call_ids) or not ids.isdisjoint(call_ids)
                if is_reused or not _is_turn(message, messages[index + 1 : end]):
                    return False
                turns.append((index, call_ids))
                ids.update(call_ids)
                index = end
            elif type(message) is UserMessage and _is_content(message.content):
                index += 1
            else:
                return False
        self._remember(turns)
        return True

    def _remember(self, turns: list[tuple[int, list[str]]]) -> None:
        """Remember that all turns but the last are valid: they will not change."""
        if turns:
            self._valid_count = turns[-1][0]
            for _, call_ids in turns[:-1]:
                self._ids.update(call_ids)


def _is_turn(answer: AssistantMessage, results: list[Message]) -> bool:
    call_ids = [call.id for call in answer.calls]
    if len(results) < len(call_ids) or len(set(call_ids)) < len(call_ids):
        return False
    if not is_valid_text(answer.text) or not (
        answer.calls or answer.output or has_text(answer.text)
    ):
        return False
    return all(
        _is_call(call) and _is_result_of(result, call)
        for call, result in zip(answer.calls, results, strict=True)
    )


def _is_call(call: RequestedCall) -> bool:
    return is_valid_id(call.id) and is_valid_name(call.tool) and is_json_value(call.params)


def _is_result_of(result: Message, call: RequestedCall) -> bool:
    if type(result) is not ToolMessage or result.call_id != call.id:
        return False
    content = result.content
    if type(content) is str:
        return is_valid_text(content) and bool(content or not result.is_error)
    return _is_content(content)


def _is_content(content: Content) -> bool:
    if type(content) is str:
        return has_text(content)
    return type(content) is list and bool(content) and all(map(_is_part, content))


def _is_part(part: Any) -> bool:
    if type(part) is not dict or part.get("type") not in _PART_TYPES or not is_json_value(part):
        return False
    if part["type"] == "text":
        return type(part.get("text")) is str and has_text(part["text"])
    return any(type(part.get(key)) is str for key in ("blob", "url", "data"))


Canonical = list[tuple[dict[str, Any], bool]]
_PRECEDING = UserMessage("…")  # represents the messages before: no history begins with a response


class IncrementalCanonical:
    """Canonical form of a history that grows at its end."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._canonical: Canonical = []
        self._repair = IncrementalRepair()

    def canonical(self, messages: list[Message]) -> Canonical:
        """Return the canonical form, as the function `canonical` does, reading only new messages.

        The form of a valid turn does not depend on the turns before it. A history with another
        beginning than that of the previous call, or an invalid one, is read as a whole.
        """
        if messages[: len(self._messages)] != self._messages:
            self._messages, self._canonical, self._repair = [], [], IncrementalRepair()
        if not self._repair.is_valid(messages):
            return canonical(messages)
        new = canonical([_PRECEDING, *messages[len(self._messages) :]])[1:]
        self._messages, self._canonical = messages.copy(), self._canonical + new
        return self._canonical
