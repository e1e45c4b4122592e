"""Reading histories: messages of Anthropic, of OpenAI (both kinds) and of our own, as turns."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from perdure.core.conversation.repair.blocks import (
    Unreadable,
    function_call,
    is_made_of,
    read_block,
    result_part,
    text_part,
)
from perdure.core.conversation.repair.json_values import is_plain, shown
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
    Role,
    Shapes,
    Turn,
)
from perdure.core.conversation.repair.own_messages import is_own, read_own
from perdure.core.conversation.repair.response_items import ItemIds, carry, is_said_as_item

ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_LOOKED_AT: Final = {"role", "content"}  # what reading has made sure of by itself
_ITEMS: Final = frozenset({"function_call", "function_call_output", "reasoning"})
_NOWHERE: Final[Shapes] = frozenset()  # a file as we write it is no message of theirs
_TEXT: Final[Shapes] = ANTHROPIC | OPENAI
_TOLD: Final = frozenset({"text"})  # what a tool may say in OpenAI chat
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


class Reader:
    """Takes messages in, one after the other, and says what was wrong with them."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.issues: list[Issue] = []
        self._at = 0
        self._items = ItemIds()

    def read(self, messages: Iterable[object]) -> None:
        """Take in a whole history."""
        for self._at, message in enumerate(messages):
            self._message(message)

    def _message(self, message: object) -> None:
        if is_own(message):
            self._keep(read_own(message, self._at))
        elif not issubclass(type(message), dict):
            self._report("invalid_message", "removed_message", "Removed what is not a message")
        else:
            self._dict(message)

    def _dict(self, given: Any) -> None:
        message = given if type(given) is dict else dict(dict.items(given))
        role = message.get("role")
        kind = message.get("type")
        if type(role) is not str and type(kind) is str and kind in _ITEMS:
            self._item(message)
        elif type(role) is str and role in ("tool", "function"):
            self._tool(message)
        elif type(role) is str and role in ROLES:
            self._said(message, ROLES[role])
        else:
            what = f"role {shown(role)!r}" if type(role) is str else "no role"
            self._report("invalid_message", "removed_message", f"Removed a message with {what}")

    # --- the kinds of messages ----------------------------------------------------------------

    def _item(self, item: dict[Any, Any]) -> None:
        """An item of OpenAI Responses that is no message."""
        try:
            part = _needed(read_block(item, "assistant"))
        except Unreadable as error:
            self._report("invalid_message", "removed_message", f"Removed {error}")
            if error.private:
                self._items.lose_reasoning()
            return
        stays = self._items.takes(item) and part.same
        part.item = item if stays else None
        self._made_whole(stays)
        role: Role = "user" if part.kind == "result" else "assistant"
        self._add(Turn(role, [part], self._at, RESPONSES, more=_origin(item)))

    def _tool(self, message: dict[Any, Any]) -> None:
        """A tool's answer in OpenAI chat."""
        content = message.get("content")
        try:
            part = result_part(message.get("tool_call_id"), content)
        except Unreadable:
            self._report(
                "invalid_message", "removed_message", "Removed a tool message without tool_call_id"
            )
            return
        part.same = part.same and is_made_of(_TOLD, content)
        whole = part.same and message["role"] == "tool" and is_plain(message)
        part.given = message if whole else None
        self._made_whole(whole)
        self.turns.append(Turn("user", [part], self._at, OPENAI))

    def _said(self, message: dict[Any, Any], role: Role) -> None:
        heard = _Heard(role)
        if role == "assistant" and type(message.get("raw_content")) is list:
            alone = not any(map(_is_some, (message.get("content"), message.get("tool_calls"))))
            heard.raw(message["raw_content"], only_private=not alone)
        heard.content(message.get("content"))
        if "tool_calls" in message:
            heard.calls(message["tool_calls"])
        heard.stands_in(_shapes_of(message))
        for what in heard.wrong:
            self._report("invalid_message", "skipped", f"Skipped {what}")
        runs = _runs(heard.kept(), role)
        whole = heard.same and len(runs) == 1 and runs[0][0] == role
        whole = whole and (message.keys() == _LOOKED_AT or is_plain(message))
        given = message if whole and all(part.same for part in heard.parts) else None
        given = given if self._may_be_item(message, heard.shapes) else None
        if not runs and not heard.wrong:
            self._report("empty_message", "removed_message", "Removed an empty message")
        self._made_whole(given is not None or not runs or bool(heard.wrong))
        for natural, parts in runs:
            turn = Turn(natural, parts, self._at, heard.shapes, given, _origin(message))
            turn.changed = given is None
            self._add(turn)

    def _may_be_item(self, message: dict[Any, Any], shapes: Shapes) -> bool:
        """Whether it could stand among items; of what may be none, only ids are looked at."""
        if shapes == RESPONSES:
            return self._items.takes(message) and is_said_as_item(message)
        return "responses" not in shapes or not self._items.repeats(message)

    # --- what is told of them -----------------------------------------------------------------

    def _add(self, turn: Turn) -> None:
        """A turn; the items of one answer of OpenAI Responses are one."""
        if type(turn.given) is dict and "responses" in turn.shapes:
            carry(turn.parts, turn.given)
        last = self.turns[-1] if self.turns else turn
        items = last.shapes == RESPONSES and "responses" in turn.shapes and last is not turn
        if items and last.role == turn.role == "assistant" and last.more == turn.more:
            last.parts += turn.parts
            last.changed = last.changed or turn.changed
        else:
            self.turns.append(turn)

    def _keep(self, turn: Turn) -> None:
        self._made_whole(not turn.changed and all(part.same for part in turn.parts))
        self.turns.append(turn)

    def _made_whole(self, whole: bool) -> None:
        """Tell of a message of which not every part could stay as it was."""
        if not whole:
            self._report("invalid_message", "skipped", "Parts that no provider takes: made whole")

    def _report(self, kind: IssueType, action: Action, details: str) -> None:
        self.issues.append(Issue(kind, self._at, action, details))


class _Heard:
    """The parts of one message, and whether they are all that it said."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self.parts: list[Part] = []
        self.wrong: list[str] = []
        self.same = True
        self.shapes: Shapes = EVERY
        self._private_lost = False

    def content(self, content: object) -> None:
        """Text, or a list of blocks; nothing is nothing."""
        if content is None:
            return
        if type(content) is list:
            self._blocks(content)
        elif issubclass(type(content), str):
            part = text_part(content)
            self.parts += [] if part is None else [part]
        else:
            self._lost("a content that is neither text nor a list")

    def raw(self, blocks: list[object], *, only_private: bool) -> None:
        """The provider's own blocks; beside what was made of them only the private ones count."""
        for block in blocks:
            self._block(block, only_private=only_private)

    def calls(self, calls: object) -> None:
        """`tool_calls` of OpenAI chat."""
        if type(calls) is not list:
            self.same = self.same and calls is None
            self.wrong += [] if calls is None else ["tool_calls that are no list"]
            return
        self.same = self.same and bool(calls)
        for call in calls:
            function = call.get("function") if type(call) is dict else None
            try:
                if type(call) is not dict or type(function) is not dict:
                    raise Unreadable("a tool call that cannot be read")
                self.parts.append(function_call(call.get("id"), function))
            except Unreadable as error:
                self._lost(str(error))

    def _blocks(self, blocks: list[object]) -> None:
        if not blocks:
            self.same = False
        for block in blocks:
            if type(block) is dict and type(block.get("type")) is str:
                self.stands_in(_shapes_of_block(block))
            self._block(block)

    def _block(self, block: object, *, only_private: bool = False) -> None:
        try:
            part = read_block(block, self.role)
            if part is not None and part.kind in _NOT_SAID_BY[self.role]:
                raise Unreadable(f"a {part.block['type']} block of the {self.role}")
        except Unreadable as error:
            if not only_private or error.private:
                self._lost(str(error))
                self._private_lost = self._private_lost or error.private
            return
        if part is None:
            self.same = False
        elif not only_private or part.kind == "private":
            self.parts.append(part)

    def stands_in(self, shapes: Shapes) -> None:
        """Take note in which shapes all of it may stand; if in none, it is written anew."""
        both = self.shapes & shapes
        if not both:
            self.same = False
            is_item = {self.shapes, shapes} == {RESPONSES, _TEXT}
            both = RESPONSES if is_item else ANTHROPIC  # the second can say everything
        self.shapes = both

    def kept(self) -> list[Part]:
        """All parts; a damaged private one has taken the others with it."""
        if not self._private_lost:
            return self.parts
        return [part for part in self.parts if part.kind != "private"]

    def _lost(self, what: str) -> None:
        self.same = False
        self.wrong.append(what)


_NOT_SAID_BY: Final[dict[Role, frozenset[str]]] = {
    "system": frozenset({"media", "private"}),
    "user": frozenset({"private"}),
    "assistant": frozenset({"media"}),
}


def _shapes_of(message: dict[Any, Any]) -> Shapes:
    """In which shapes a message may stand, by what it has beside its content."""
    if "tool_calls" in message or "raw_content" in message:
        return OPENAI
    if type(message.get("content")) is str and _is_kind(message, "message"):
        return RESPONSES
    return OPENAI | RESPONSES if message["role"] == "developer" else EVERY


def _shapes_of_block(block: dict[Any, Any]) -> Shapes:
    if block["type"] == "file":
        return OPENAI if type(block.get("file")) is dict else _NOWHERE
    return _SHAPES.get(block["type"], ANTHROPIC)


def _is_kind(message: dict[Any, Any], kind: str) -> bool:
    given = message.get("type")
    return type(given) is str and given == kind


def _is_some(value: object) -> bool:
    return type(value) in (str, list) and value not in ("", [])


def _needed(part: Part | None) -> Part:
    if part is None:
        raise Unreadable("an empty item")
    return part


def _runs(parts: list[Part], role: Role) -> list[tuple[Role, list[Part]]]:
    """Parts that one side can say together: a call is the assistant's, a result the user's."""
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
    if message.keys() == _LOOKED_AT:
        return NO_ORIGIN
    return {
        key: message[key]
        for key in ("provider", "model")
        if type(message.get(key)) is str and is_plain(message[key])
    }
