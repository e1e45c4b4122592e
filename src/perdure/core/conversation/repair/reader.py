"""Reader of histories: messages of Anthropic, OpenAI (both formats) and perdure as turns."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from perdure.core.conversation.repair.blocks import (
    Unreadable,
    function_call,
    has_only_types,
    read_block,
    result_part,
    text_part,
)
from perdure.core.conversation.repair.json_values import is_json_value, to_text
from perdure.core.conversation.repair.model import (
    ANTHROPIC,
    EVERY,
    NO_ORIGIN,
    OPENAI,
    RESPONSES,
    Action,
    Issue,
    IssueType,
    Part,
    RepairTurn,
    Role,
    Shapes,
)
from perdure.core.conversation.repair.own_messages import is_own, read_own
from perdure.core.conversation.repair.response_items import ItemIds, assign_item, has_item_content

ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_CHECKED_KEYS: Final = {"role", "content"}  # their values are checked while they are read
_ITEMS: Final = frozenset({"function_call", "function_call_output", "reasoning"})
_NO_SHAPE: Final[Shapes] = frozenset()  # a file of perdure is not valid in any of them
_TEXT: Final[Shapes] = ANTHROPIC | OPENAI
_TEXT_ONLY: Final = frozenset({"text"})  # content of a result in OpenAI chat
_SHAPES: Final[dict[str, Shapes]] = {
    "text": _TEXT,
    "image_url": OPENAI,
    "input_audio": OPENAI,
    "refusal": OPENAI | RESPONSES,
    "input_text": RESPONSES,
    "output_text": RESPONSES,
    "input_image": RESPONSES,
    "input_file": RESPONSES,
}


class HistoryReader:
    """Reads messages one after the other as turns, and reports their defects as issues."""

    def __init__(self) -> None:
        self.turns: list[RepairTurn] = []
        self.issues: list[Issue] = []
        self._index = 0
        self._items = ItemIds()

    def read(self, messages: Iterable[object]) -> None:
        """Read a whole history."""
        for self._index, message in enumerate(messages):
            self._read_message(message)

    def _read_message(self, message: object) -> None:
        if is_own(message):
            self._add_own(read_own(message, self._index))
        elif not issubclass(type(message), dict):
            self._report(
                "invalid_message", "removed_message", "Removed an entry that is not a message"
            )
        else:
            self._read_dict(message)

    def _read_dict(self, original: Any) -> None:
        message = original if type(original) is dict else dict(dict.items(original))
        role = message.get("role")
        kind = message.get("type")
        if type(role) is not str and type(kind) is str and kind in _ITEMS:
            self._read_item(message)
        elif type(role) is str and role in ("tool", "function"):
            self._read_tool_message(message)
        elif type(role) is str and role in ROLES:
            self._read_role_message(message, ROLES[role])
        else:
            problem = f"role {to_text(role)!r}" if type(role) is str else "no role"
            self._report("invalid_message", "removed_message", f"Removed a message with {problem}")

    # --- the kinds of messages ----------------------------------------------------------------

    def _read_item(self, item: dict[Any, Any]) -> None:
        """Read an item of OpenAI Responses other than a message."""
        try:
            part = _require_part(read_block(item, "assistant"))
        except Unreadable as error:
            self._report("invalid_message", "removed_message", f"Removed {error}")
            if error.private:
                self._items.note_lost_reasoning()
            return
        may_stay = self._items.may_keep(item) and part.unchanged
        part.item = item if may_stay else None
        self._report_change(may_stay)
        role: Role = "user" if part.kind == "result" else "assistant"
        self._add(RepairTurn(role, [part], self._index, RESPONSES, origin=_origin(item)))

    def _read_tool_message(self, message: dict[Any, Any]) -> None:
        """Read the result of a call in OpenAI chat."""
        content = message.get("content")
        try:
            part = result_part(message.get("tool_call_id"), content)
        except Unreadable:
            self._report(
                "invalid_message", "removed_message", "Removed a tool message without tool_call_id"
            )
            return
        part.unchanged = part.unchanged and has_only_types(_TEXT_ONLY, content)
        is_unchanged = part.unchanged and message["role"] == "tool" and is_json_value(message)
        part.original = message if is_unchanged else None
        self._report_change(is_unchanged)
        self.turns.append(RepairTurn("user", [part], self._index, OPENAI))

    def _read_role_message(self, message: dict[Any, Any], role: Role) -> None:
        collected = _MessageParts(role)
        if role == "assistant" and type(message.get("raw_content")) is list:
            has_content = any(map(_is_filled, (message.get("content"), message.get("tool_calls"))))
            collected.add_raw(message["raw_content"], only_private=has_content)
        collected.add_content(message.get("content"))
        if "tool_calls" in message:
            collected.add_calls(message["tool_calls"])
        collected.restrict_shapes(_message_shapes(message))
        for problem in collected.problems:
            self._report("invalid_message", "skipped", f"Skipped {problem}")
        runs = _runs(collected.usable_parts(), role)
        is_unchanged = collected.unchanged and len(runs) == 1 and runs[0][0] == role
        is_unchanged = is_unchanged and (message.keys() == _CHECKED_KEYS or is_json_value(message))
        original = (
            message if is_unchanged and all(part.unchanged for part in collected.parts) else None
        )
        original = original if self._may_be_item(message, collected.shapes) else None
        if not runs and not collected.problems:
            self._report("empty_message", "removed_message", "Removed an empty message")
        self._report_change(original is not None or not runs or bool(collected.problems))
        for side, parts in runs:
            turn = RepairTurn(
                side, parts, self._index, collected.shapes, original, _origin(message)
            )
            turn.changed = original is None
            self._add(turn)

    def _may_be_item(self, message: dict[Any, Any], shapes: Shapes) -> bool:
        """Report whether a message may stay as an item; in other shapes only its id is checked."""
        if shapes == RESPONSES:
            return self._items.may_keep(message) and has_item_content(message)
        return "responses" not in shapes or not self._items.is_repeated(message)

    # --- turns and issues ---------------------------------------------------------------------

    def _add(self, turn: RepairTurn) -> None:
        """Add a turn; items of the same response of OpenAI Responses become one turn."""
        if type(turn.original) is dict and "responses" in turn.shapes:
            assign_item(turn.parts, turn.original)
        last = self.turns[-1] if self.turns else turn
        are_items = last.shapes == RESPONSES and "responses" in turn.shapes and last is not turn
        if are_items and last.role == turn.role == "assistant" and last.origin == turn.origin:
            last.parts += turn.parts
            last.changed = last.changed or turn.changed
        else:
            self.turns.append(turn)

    def _add_own(self, turn: RepairTurn) -> None:
        self._report_change(not turn.changed and all(part.unchanged for part in turn.parts))
        self.turns.append(turn)

    def _report_change(self, is_unchanged: bool) -> None:
        """Report a message of which some part had to change."""
        if not is_unchanged:
            self._report("invalid_message", "skipped", "Parts that no provider accepts: rewritten")

    def _report(self, kind: IssueType, action: Action, details: str) -> None:
        self.issues.append(Issue(kind, self._index, action, details))


class _MessageParts:
    """Parts of one message, and whether they are its whole content."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self.parts: list[Part] = []
        self.problems: list[str] = []
        self.unchanged = True
        self.shapes: Shapes = EVERY
        self._is_private_lost = False

    def add_content(self, content: object) -> None:
        """Add the content: text, a list of blocks, or nothing."""
        if content is None:
            return
        if type(content) is list:
            self._add_blocks(content)
        elif issubclass(type(content), str):
            part = text_part(content)
            self.parts += [] if part is None else [part]
        else:
            self._skip("a content that is neither text nor a list")

    def add_raw(self, blocks: list[object], *, only_private: bool) -> None:
        """Add native blocks; with `only_private`, the content has all others already."""
        for block in blocks:
            self._add_block(block, only_private=only_private)

    def add_calls(self, calls: object) -> None:
        """Add the `tool_calls` of OpenAI chat."""
        if type(calls) is not list:
            self.unchanged = self.unchanged and calls is None
            self.problems += [] if calls is None else ["tool_calls that are not a list"]
            return
        self.unchanged = self.unchanged and bool(calls)
        for call in calls:
            function = call.get("function") if type(call) is dict else None
            try:
                if type(call) is not dict or type(function) is not dict:
                    raise Unreadable("a tool call that cannot be read")
                self.parts.append(function_call(call.get("id"), function))
            except Unreadable as error:
                self._skip(str(error))

    def _add_blocks(self, blocks: list[object]) -> None:
        if not blocks:
            self.unchanged = False
        for block in blocks:
            if type(block) is dict and type(block.get("type")) is str:
                self.restrict_shapes(_block_shapes(block))
            self._add_block(block)

    def _add_block(self, block: object, *, only_private: bool = False) -> None:
        try:
            part = read_block(block, self.role)
            if part is not None and part.kind in _FORBIDDEN_KINDS[self.role]:
                raise Unreadable(f"a {part.block['type']} block of the {self.role}")
        except Unreadable as error:
            if not only_private or error.private:
                self._skip(str(error))
                self._is_private_lost = self._is_private_lost or error.private
            return
        if part is None:
            self.unchanged = False
        elif not only_private or part.kind == "private":
            self.parts.append(part)

    def restrict_shapes(self, shapes: Shapes) -> None:
        """Restrict the shapes in which the message is valid; it is rewritten if there is none."""
        common = self.shapes & shapes
        if not common:
            self.unchanged = False
            is_item = {self.shapes, shapes} == {RESPONSES, _TEXT}
            common = RESPONSES if is_item else ANTHROPIC  # Anthropic's shape can express everything
        self.shapes = common

    def usable_parts(self) -> list[Part]:
        """Return all parts; without private ones if one of them is damaged."""
        if not self._is_private_lost:
            return self.parts
        return [part for part in self.parts if part.kind != "private"]

    def _skip(self, problem: str) -> None:
        self.unchanged = False
        self.problems.append(problem)


_FORBIDDEN_KINDS: Final[dict[Role, frozenset[str]]] = {
    "system": frozenset({"media", "private"}),
    "user": frozenset({"private"}),
    "assistant": frozenset({"media"}),
}


def _message_shapes(message: dict[Any, Any]) -> Shapes:
    """Return the shapes in which a message is valid, by its keys other than the content."""
    if "tool_calls" in message or "raw_content" in message:
        return OPENAI
    if type(message.get("content")) is str and _is_kind(message, "message"):
        return RESPONSES
    return OPENAI | RESPONSES if message["role"] == "developer" else EVERY


def _block_shapes(block: dict[Any, Any]) -> Shapes:
    if block["type"] == "file":
        return OPENAI if type(block.get("file")) is dict else _NO_SHAPE
    return _SHAPES.get(block["type"], ANTHROPIC)


def _is_kind(message: dict[Any, Any], kind: str) -> bool:
    value = message.get("type")
    return type(value) is str and value == kind


def _is_filled(value: object) -> bool:
    return type(value) in (str, list) and value not in ("", [])


def _require_part(part: Part | None) -> Part:
    if part is None:
        raise Unreadable("an empty item")
    return part


def _runs(parts: list[Part], role: Role) -> list[tuple[Role, list[Part]]]:
    """Group parts by role: calls belong to the assistant, results to the user."""
    runs: list[tuple[Role, list[Part]]] = []
    for part in parts:
        side: Role = "assistant" if part.kind == "call" else role
        side = "user" if part.kind == "result" else side
        if runs and runs[-1][0] == side:
            runs[-1][1].append(part)
        else:
            runs.append((side, [part]))
    return runs


def _origin(message: dict[Any, Any]) -> Mapping[str, Any]:
    if message.keys() == _CHECKED_KEYS:
        return NO_ORIGIN
    return {
        key: message[key]
        for key in ("provider", "model")
        if type(message.get(key)) is str and is_json_value(message[key])
    }
