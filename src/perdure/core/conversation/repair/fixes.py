"""The fixes: every call gets its one result directly after it, and nothing else is lost."""

import re
from collections import deque
from collections.abc import Generator, Iterator
from itertools import pairwise
from typing import Final

from perdure.core.conversation.repair.blocks import is_readable_type
from perdure.core.conversation.repair.call_ids import CallIds
from perdure.core.conversation.repair.model import (
    OPENAI,
    OWN,
    RESPONSES,
    Action,
    Issue,
    Part,
    RepairTurn,
    Shapes,
)

LOST_START: Final = "[The beginning of this conversation is missing.]"
_RESULT_IS_MESSAGE: Final[Shapes] = OPENAI | RESPONSES | OWN
_THINKING_TYPES: Final = frozenset({"thinking", "redacted_thinking", "reasoning"})
_SERVER_ID: Final = re.compile(r"srvtoolu_[A-Za-z0-9_]+", re.ASCII)


class _UnansweredCalls:
    """Calls without a result so far, by id: latest turn first, within a turn in order."""

    def __init__(self) -> None:
        self._calls: dict[str, list[tuple[int, deque[Part]]]] = {}

    def add(self, call: Part, group: int) -> None:
        turns = self._calls.setdefault(call.id, [])
        if not turns or turns[-1][0] != group:
            turns.append((group, deque()))
        turns[-1][1].append(call)

    def pop(self, result: Part) -> Part | None:
        turns = self._calls.get(result.id)
        if not turns:
            return None
        call = turns[-1][1].popleft()
        if not turns[-1][1]:
            turns.pop()
        return call


class Fixes:
    """Puts the turns of one history in order. Changes its parts in place."""

    def __init__(self, turns: list[RepairTurn], interrupted: str | None) -> None:
        self._turns = turns
        self._interrupted = interrupted
        self.issues: list[Issue] = []
        self._added_results: set[int] = set()  # of calls that were cut off
        self._placed_results: set[int] = set()  # results that are where they belong
        self._ids = CallIds(part.id for turn in turns for part in turn.parts if part.kind == "call")

    def apply(self) -> list[RepairTurn]:
        """Return the turns of a valid conversation."""
        self._pair()
        self._close_calls()
        turns = list(self._ordered_turns())
        first = next((n for n, turn in enumerate(turns) if turn.role != "system"), None)
        if first is not None and turns[first].role == "assistant":
            self._report(
                turns[first].index,
                "The conversation began with a response: put a user message before it",
            )
            turns.insert(first, _placeholder(turns[first]))
        for turn in turns:
            turn.changed = turn.changed or not all(part.unchanged for part in turn.parts)
        return turns

    # --- calls and results --------------------------------------------------------------------

    def _pair(self) -> None:
        open_calls, answered, group = _UnansweredCalls(), set[str](), 0
        for turn in self._turns:
            group += turn.role != "assistant"
            orphans: list[Part] = []
            for part in turn.parts:
                if part.kind == "call":
                    open_calls.add(part, group)
                elif part.kind == "result":
                    call = open_calls.pop(part)
                    if call is None:
                        orphans.append(part)
                        self._report_orphan(turn, part, is_second=part.id in answered)
                        continue
                    call.counterpart, part.counterpart = part, call
                    answered.add(part.id)
            if orphans:
                _drop(turn, set(map(id, orphans)))

    def _report_orphan(self, turn: RepairTurn, part: Part, *, is_second: bool) -> None:
        kind = "a second tool result for" if is_second else "orphaned tool result"
        details = f"Removed {kind} {part.id}"
        self.issues.append(
            Issue("orphaned_tool_result", turn.index, "removed_message", details, (part.id,))
        )

    def _close_calls(self) -> None:
        """Drop calls without a result, or add a result to them; assign ids to the others."""
        for turn in self._turns:
            calls = _calls(turn)
            unanswered = [part for part in calls if part.counterpart is None]
            if unanswered:
                self._close_unanswered(turn, unanswered)
            for part in calls:
                if part.counterpart is not None:
                    self._assign_id(turn, part, part.counterpart)

    def _close_unanswered(self, turn: RepairTurn, calls: list[Part]) -> None:
        if self._interrupted is None:
            _drop(turn, set(map(id, calls)))
        else:
            for part in calls:
                part.counterpart = _interrupted_result(part, self._interrupted)
                self._added_results.add(id(part.counterpart))
        self._report_incomplete(turn, tuple(part.id for part in calls))

    def _report_incomplete(self, turn: RepairTurn, ids: tuple[str, ...]) -> None:
        dropped = self._interrupted is None
        action: Action = "removed_tool_calls" if dropped else "skipped"
        verb = "Removed" if dropped else "Closed"
        details = f"{verb} {len(ids)} incomplete tool call(s): {', '.join(ids)}"
        self.issues.append(Issue("incomplete_tool_call", turn.index, action, details, ids))

    def _assign_id(self, turn: RepairTurn, call: Part, result: Part) -> None:
        new_id = self._ids.assign(call.id)
        if new_id == call.block["id"] == result.block["tool_use_id"]:
            return
        call.block = {**call.block, "id": new_id}
        result.block = {**result.block, "tool_use_id": new_id}
        call.unchanged = result.unchanged = False
        turn.changed = True
        self._report(
            turn.index, f"Tool call id {call.id!r} was reused or malformed: renamed to {new_id}"
        )

    # --- order --------------------------------------------------------------------------------

    def _ordered_turns(self) -> Iterator[RepairTurn]:
        index = 0
        while index < len(self._turns):
            if self._turns[index].role != "assistant":
                yield from self._remaining_turn(self._turns[index])
                index += 1
                continue
            end = index
            while end < len(self._turns) and self._turns[end].role == "assistant":
                end += 1
            yield from self._answer_turns(self._turns[index:end])
            index = yield from self._result_turns(self._turns[index:end], end)

    def _answer_turns(self, run: list[RepairTurn]) -> Iterator[RepairTurn]:
        """Yield consecutive responses; from the first with a call on they become one."""
        first = next((n for n, turn in enumerate(run) if _calls(turn)), len(run))
        for turn in run[:first]:
            yield from self._remaining_turn(turn)
        with_calls = [turn for turn in run[first:] if turn.parts]
        if len(with_calls) > 1:
            self._report(
                with_calls[0].index,
                f"{len(with_calls)} responses in a row before their results: joined",
            )
            yield from self._remaining_turn(_joined_turn(with_calls))
        elif with_calls:
            yield from self._remaining_turn(with_calls[0])

    def _result_turns(self, run: list[RepairTurn], index: int) -> Generator[RepairTurn, None, int]:
        """Yield the results directly after their responses; return the index to continue at."""
        expected = [
            part.counterpart
            for turn in run
            for part in _calls(turn)
            if part.counterpart is not None
        ]
        if not expected:
            return index
        end, following = self._following_results(index, {id(part) for part in expected})
        if len(following) < len(expected):
            self._report_moved(run[-1].index, index, expected)
            self._placed_results.update(id(part) for part in expected)
            yield RepairTurn("user", expected, run[-1].index, run[-1].shapes, changed=True)
            return index
        self._placed_results.update(id(part) for part in expected)
        turns = self._turns[index:end]
        if len(turns) == 1:
            yield turns[0]
        elif all(turn.shapes <= _RESULT_IS_MESSAGE for turn in turns):
            yield RepairTurn("user", following, turns[0].index, turns[0].shapes)
        else:
            self._report(turns[0].index, f"Results of one turn in {len(turns)} messages: joined")
            other_parts = [part for part in turns[-1].parts if part.kind != "result"]
            yield RepairTurn(
                "user", expected + other_parts, turns[0].index, turns[0].shapes, changed=True
            )
        return end

    def _report_moved(self, turn: int, index: int, expected: list[Part]) -> None:
        """Report results that are elsewhere; those that were added are not."""
        own = {id(part) for part in expected} - self._added_results
        if len(self._following_results(index, own)[1]) < len(own):
            self._report(turn, f"{len(own)} tool result(s) not directly after their call: moved")

    def _following_results(self, index: int, expected: set[int]) -> tuple[int, list[Part]]:
        """Return the expected results that directly follow, up to the first other part."""
        following: list[Part] = []
        while index < len(self._turns) and len(following) < len(expected):
            turn = self._turns[index]
            _drop(turn, self._placed_results)
            results = [part for part in turn.parts if part.kind == "result"]
            leading = turn.parts[: len(results)] == results
            if not results or not leading or not all(id(part) in expected for part in results):
                return index, []
            following += results
            index += 1
            if len(results) < len(turn.parts):
                break
        return index, following

    def _remaining_turn(self, turn: RepairTurn) -> Iterator[RepairTurn]:
        """Yield a turn without the parts that were placed elsewhere; nothing if it is empty."""
        if turn.role == "assistant":
            self._check_private(turn)
        else:
            _drop(turn, self._placed_results)
        if turn.parts:
            yield turn

    def _check_private(self, turn: RepairTurn) -> None:
        private = [part for part in turn.parts if part.kind == "private"]
        is_followed = turn.shapes != RESPONSES or _is_reasoning_followed(turn.parts)
        continues = turn.paused and turn is self._turns[-1]
        if private and not (is_followed and _may_keep_private(turn.parts, continues=continues)):
            _drop(turn, set(map(id, private)))
            self._report(turn.index, "Thinking without the text or call after it: dropped")

    def _report(self, index: int, details: str) -> None:
        self.issues.append(Issue("invalid_message", index, "skipped", details))


def _calls(turn: RepairTurn) -> list[Part]:
    return [part for part in turn.parts if part.kind == "call"]


def _drop(turn: RepairTurn, parts: set[int]) -> None:
    remaining = [part for part in turn.parts if id(part) not in parts]
    if len(remaining) < len(turn.parts):
        turn.parts, turn.changed = remaining, True


def _interrupted_result(call: Part, text: str) -> Part:
    block = {"type": "tool_result", "tool_use_id": call.id, "content": text, "is_error": True}
    return Part("result", block, call.id, unchanged=False, counterpart=call)


def _joined_turn(turns: list[RepairTurn]) -> RepairTurn:
    """Join turns into one; private parts are valid in their own response only."""
    parts = [part for turn in turns for part in turn.parts if part.kind != "private"]
    first = turns[0]
    for part in parts:
        part.item = None  # an item belongs to one response
    return RepairTurn(
        "assistant", parts, first.index, first.shapes, first.original, first.origin, changed=True
    )


def _placeholder(before: RepairTurn) -> RepairTurn:
    part = Part("text", {"type": "text", "text": LOST_START})
    return RepairTurn("user", [part], before.index, before.shapes, changed=True)


def _is_reasoning_followed(parts: list[Part]) -> bool:
    """Report whether each piece of reasoning directly precedes its text or call."""
    return all(after.kind != "private" for part, after in pairwise(parts) if part.kind == "private")


def _may_keep_private(parts: list[Part], *, continues: bool) -> bool:
    """Report whether thinking precedes other parts, and each server tool its result.

    If the provider continues the response, results may still come.
    """
    if parts[-1].block["type"] in _THINKING_TYPES:
        return False
    open_ids: set[str] = set()
    for part in parts:
        kind = part.block["type"]
        if part.kind != "private" or kind in _THINKING_TYPES or not is_readable_type(kind):
            continue
        if kind == "server_tool_use":
            if _SERVER_ID.fullmatch(part.id) is None or part.id in open_ids:
                return False
            open_ids.add(part.id)
        elif part.id not in open_ids:
            return False
        else:
            open_ids.discard(part.id)
    return continues or not open_ids
