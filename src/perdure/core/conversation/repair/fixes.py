"""The repair itself: every call with its one result directly after it, and nothing else lost."""

import re
from collections import deque
from collections.abc import Generator, Iterator
from itertools import pairwise
from typing import Final

from perdure.core.conversation.repair.blocks import is_known
from perdure.core.conversation.repair.call_ids import Ids
from perdure.core.conversation.repair.model import (
    OPENAI,
    OWN,
    RESPONSES,
    Action,
    Issue,
    Part,
    Shapes,
    Turn,
)

LOST_START: Final = "[The beginning of this conversation is missing.]"
_RESULT_IS_MESSAGE: Final[Shapes] = OPENAI | RESPONSES | OWN
_THOUGHT: Final = frozenset({"thinking", "redacted_thinking", "reasoning"})
_SERVER_ID: Final = re.compile(r"srvtoolu_[A-Za-z0-9_]+", re.ASCII)


class _Waiting:
    """Calls that have no result yet, by id: the latest turn first, within a turn in order."""

    def __init__(self) -> None:
        self._calls: dict[str, list[tuple[int, deque[Part]]]] = {}

    def add(self, call: Part, group: int) -> None:
        turns = self._calls.setdefault(call.id, [])
        if not turns or turns[-1][0] != group:
            turns.append((group, deque()))
        turns[-1][1].append(call)

    def answered_by(self, result: Part) -> Part | None:
        turns = self._calls.get(result.id)
        if not turns:
            return None
        call = turns[-1][1].popleft()
        if not turns[-1][1]:
            turns.pop()
        return call


class Fixes:
    """Puts the turns of one history in order. Its parts are changed in place."""

    def __init__(self, turns: list[Turn], interrupted: str | None) -> None:
        self._turns = turns
        self._interrupted = interrupted
        self.issues: list[Issue] = []
        self._placed: set[int] = set()  # results that stand where they belong
        self._ids = Ids(part.id for turn in turns for part in turn.parts if part.kind == "call")

    def mend(self) -> list[Turn]:
        """The turns of a valid conversation."""
        self._pair()
        self._close()
        told = list(self._ordered())
        first = next((n for n, turn in enumerate(told) if turn.role != "system"), None)
        if first is not None and told[first].role == "assistant":
            self._report(
                told[first].at,
                "The conversation began with an answer: put a user message before it",
            )
            told.insert(first, _placeholder(told[first]))
        for turn in told:
            turn.changed = turn.changed or not all(part.same for part in turn.parts)
        return told

    # --- calls and results --------------------------------------------------------------------

    def _pair(self) -> None:
        waiting, answered, group = _Waiting(), set[str](), 0
        for turn in self._turns:
            group += turn.role != "assistant"
            orphans: list[Part] = []
            for part in turn.parts:
                if part.kind == "call":
                    waiting.add(part, group)
                elif part.kind == "result":
                    call = waiting.answered_by(part)
                    if call is None:
                        orphans.append(part)
                        self._orphan(turn, part, again=part.id in answered)
                        continue
                    call.answer, part.answer = part, call
                    answered.add(part.id)
            if orphans:
                _drop(turn, set(map(id, orphans)))

    def _orphan(self, turn: Turn, part: Part, *, again: bool) -> None:
        what = "a second tool result for" if again else "orphaned tool result"
        details = f"Removed {what} {part.id}"
        self.issues.append(
            Issue("orphaned_tool_result", turn.at, "removed_message", details, (part.id,))
        )

    def _close(self) -> None:
        """Drop the calls that have no result, or give them one; give ids to the others."""
        for turn in self._turns:
            calls = _calls(turn)
            cut = [part for part in calls if part.answer is None]
            if cut:
                self._cut(turn, cut)
            for part in calls:
                if part.answer is not None:
                    self._name(turn, part, part.answer)

    def _cut(self, turn: Turn, calls: list[Part]) -> None:
        if self._interrupted is None:
            _drop(turn, set(map(id, calls)))
        else:
            for part in calls:
                part.answer = _told(part, self._interrupted)
        self._incomplete(turn, tuple(part.id for part in calls))

    def _incomplete(self, turn: Turn, ids: tuple[str, ...]) -> None:
        dropped = self._interrupted is None
        action: Action = "removed_tool_calls" if dropped else "skipped"
        done = "Removed" if dropped else "Closed"
        details = f"{done} {len(ids)} incomplete tool call(s): {', '.join(ids)}"
        self.issues.append(Issue("incomplete_tool_call", turn.at, action, details, ids))

    def _name(self, turn: Turn, call: Part, result: Part) -> None:
        given = self._ids.take(call.id)
        if given == call.block["id"] == result.block["tool_use_id"]:
            return
        call.block = {**call.block, "id": given}
        result.block = {**result.block, "tool_use_id": given}
        call.same = result.same = False
        turn.changed = True
        self._report(
            turn.at, f"Tool call id {call.id!r} was reused or malformed: renamed to {given}"
        )

    # --- order --------------------------------------------------------------------------------

    def _ordered(self) -> Iterator[Turn]:
        place = 0
        while place < len(self._turns):
            if self._turns[place].role != "assistant":
                yield from self._rest(self._turns[place])
                place += 1
                continue
            end = place
            while end < len(self._turns) and self._turns[end].role == "assistant":
                end += 1
            yield from self._answers(self._turns[place:end])
            place = yield from self._results(self._turns[place:end], end)

    def _answers(self, run: list[Turn]) -> Iterator[Turn]:
        """Answers that follow one another; from the first with a call on they become one."""
        first = next((n for n, turn in enumerate(run) if _calls(turn)), len(run))
        for turn in run[:first]:
            yield from self._rest(turn)
        asking = [turn for turn in run[first:] if turn.parts]
        if len(asking) > 1:
            self._report(
                asking[0].at, f"{len(asking)} answers in a row before their results: joined"
            )
            yield from self._rest(_joined(asking))
        elif asking:
            yield from self._rest(asking[0])

    def _results(self, run: list[Turn], place: int) -> Generator[Turn, None, int]:
        """The results of a run of answers, directly after it; returns where to go on."""
        wanted = [part.answer for turn in run for part in _calls(turn) if part.answer is not None]
        if not wanted:
            return place
        end, there = self._in_place(place, {id(part) for part in wanted})
        if len(there) < len(wanted):
            self._report(
                run[-1].at, f"{len(wanted)} tool result(s) not directly after their call: moved"
            )
            self._placed.update(id(part) for part in wanted)
            yield Turn("user", wanted, run[-1].at, run[-1].shapes, changed=True)
            return place
        self._placed.update(id(part) for part in wanted)
        turns = self._turns[place:end]
        if len(turns) == 1:
            yield turns[0]
        elif all(turn.shapes <= _RESULT_IS_MESSAGE for turn in turns):
            yield Turn("user", there, turns[0].at, turns[0].shapes)
        else:
            self._report(turns[0].at, f"Results of one turn in {len(turns)} messages: joined")
            rest = [part for part in turns[-1].parts if part.kind != "result"]
            yield Turn("user", wanted + rest, turns[0].at, turns[0].shapes, changed=True)
        return end

    def _in_place(self, place: int, wanted: set[int]) -> tuple[int, list[Part]]:
        """The wanted results that directly follow, as far as nothing else stands before them."""
        there: list[Part] = []
        while place < len(self._turns) and len(there) < len(wanted):
            turn = self._turns[place]
            _drop(turn, self._placed)
            results = [part for part in turn.parts if part.kind == "result"]
            leading = turn.parts[: len(results)] == results
            if not results or not leading or not all(id(part) in wanted for part in results):
                return place, []
            there += results
            place += 1
            if len(results) < len(turn.parts):
                break
        return place, there

    def _rest(self, turn: Turn) -> Iterator[Turn]:
        """A turn without what stands elsewhere; nothing if nothing is left."""
        if turn.role == "assistant":
            self._check_private(turn)
        else:
            _drop(turn, self._placed)
        if turn.parts:
            yield turn

    def _check_private(self, turn: Turn) -> None:
        private = [part for part in turn.parts if part.kind == "private"]
        leads = turn.shapes != RESPONSES or _leads(turn.parts)
        goes_on = turn.paused and turn is self._turns[-1]
        if private and not (leads and _may_stay(turn.parts, goes_on=goes_on)):
            _drop(turn, set(map(id, private)))
            self._report(turn.at, "Thinking without what it led to: dropped")

    def _report(self, at: int, details: str) -> None:
        self.issues.append(Issue("invalid_message", at, "skipped", details))


def _calls(turn: Turn) -> list[Part]:
    return [part for part in turn.parts if part.kind == "call"]


def _drop(turn: Turn, parts: set[int]) -> None:
    kept = [part for part in turn.parts if id(part) not in parts]
    if len(kept) < len(turn.parts):
        turn.parts, turn.changed = kept, True


def _told(call: Part, text: str) -> Part:
    block = {"type": "tool_result", "tool_use_id": call.id, "content": text, "is_error": True}
    return Part("result", block, call.id, same=False, answer=call)


def _joined(turns: list[Turn]) -> Turn:
    """One turn of several; what is private to one answer has no place in it."""
    parts = [part for turn in turns for part in turn.parts if part.kind != "private"]
    first = turns[0]
    for part in parts:
        part.item = None  # what others answered is written as this one's
    return Turn("assistant", parts, first.at, first.shapes, first.given, first.more, changed=True)


def _placeholder(before: Turn) -> Turn:
    part = Part("text", {"type": "text", "text": LOST_START})
    return Turn("user", [part], before.at, before.shapes, changed=True)


def _leads(parts: list[Part]) -> bool:
    """Whether each piece of reasoning stands directly before what it led to."""
    return all(after.kind != "private" for part, after in pairwise(parts) if part.kind == "private")


def _may_stay(parts: list[Part], *, goes_on: bool) -> bool:
    """Whether thinking is followed by what it led to, and each server tool by its result.

    The results of an answer that goes on may still come.
    """
    if parts[-1].block["type"] in _THOUGHT:
        return False
    used: set[str] = set()
    for part in parts:
        kind = part.block["type"]
        if part.kind != "private" or kind in _THOUGHT or not is_known(kind):
            continue
        if kind == "server_tool_use":
            if _SERVER_ID.fullmatch(part.id) is None or part.id in used:
                return False
            used.add(part.id)
        elif part.id not in used:
            return False
        else:
            used.discard(part.id)
    return goes_on or not used
