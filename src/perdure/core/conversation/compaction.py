"""Compaction: when a conversation is too long, and where it is cut; a summary replaces the start.

A cut is always between two turns, so that no call is separated from its result. The log keeps
everything; only model requests become shorter.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.log.events import CompactionRequested, Content, Event, StampedEvent
from perdure.core.log.stop_reasons import is_paused
from perdure.core.session.usage import total_tokens
from perdure.errors import ConfigError

INSTRUCTIONS: Final = (
    "Write a summary of this conversation up to here, for yourself: it will replace "
    "everything above, and you will continue from it without seeing the rest again. Keep what was "
    "asked for and every constraint, what was decided and why, what was done and found out with "
    "exact names, numbers, ids and quotes that may be needed again, what failed, what is still "
    "open, and what was to be done next. Call no tools. Answer with the summary alone."
)
_CHARACTERS_PER_TOKEN: Final = 4  # about
_TOKENS_PER_FILE: Final = 1_500  # for an image or a page, about
MAX_FIRST_TOKENS: Final = 4_000  # a longer first message is not kept beside the summary
_PARTS_OF_TURN: Final = (events.Assistant, events.ToolCall, events.ToolResult)
_WITH_TOKENS: Final = (events.User, *_PARTS_OF_TURN)


class CompactionPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of an agent for long conversations."""

    at: Annotated[float, Meta(gt=0)] = 0.8  # up to 1: a share of the window; above 1: tokens
    keep: Annotated[int, Meta(ge=1)] = 4  # turns at the end that are not summarized
    window: Annotated[int, Meta(ge=1)] | None = (
        None  # tokens; None: the window of the model, if known
    )
    first: bool = True  # keep the first message too, unless it is long itself
    instructions: Annotated[str, Meta(min_length=1)] = INSTRUCTIONS

    @property
    def is_window_required(self) -> bool:
        """Report whether the threshold depends on the window of the model."""
        return self.at <= 1 and self.window is None

    def threshold(self, window: int | None) -> float | None:
        """Return the number of tokens from which a conversation is summarized; None if unknown."""
        if self.at > 1:
            return self.at
        tokens = self.window or window
        return None if tokens is None else self.at * tokens


def parse_policy(options: Mapping[str, Any] | bool, agent: str) -> CompactionPolicy | None:
    """Check the `compaction` option of an agent; None: never compact. Raises ConfigError."""
    if isinstance(options, bool):
        return CompactionPolicy() if options else None
    try:
        return msgspec.convert(dict(options), CompactionPolicy)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise _invalid(agent, str(error)) from error


def _invalid(agent: str, problem: str) -> ConfigError:
    keys = ", ".join(CompactionPolicy.__struct_fields__)
    return ConfigError(
        f"agent {agent!r}: compaction: {problem}",
        code="AGENT_INVALID",
        hint=f"use true, false, or an object with the keys {keys}",
    )


class Cut(Struct, frozen=True):
    """Position of a cut: a summary replaces the turns before it."""

    up_to: int  # the last event of the last turn before the cut
    first: bool = False
    tokens: int = 0  # of the whole conversation
    redact: bool = False
    request_seq: int = 0  # the event in which a caller requested it; 0: automatic


def requested_cut(
    log: Sequence[StampedEvent],
    policy: CompactionPolicy,
    request: CompactionRequested,
    request_seq: int,
) -> Cut | None:
    """Return the cut that a caller requested, however short the log is; None if there is none."""
    keep = policy.keep if request.keep is None else request.keep
    cut = find_cut(log, replace(policy, keep=keep))
    return None if cut is None else replace(cut, request_seq=request_seq)


def automatic_cut(
    log: Sequence[StampedEvent], policy: CompactionPolicy, window: int | None
) -> Cut | None:
    """Return the cut before the next model request, if the conversation is too long for it.

    There is at most one summary before each response: only the response reports its effect.
    """
    threshold = policy.threshold(window)
    if threshold is None or _is_fresh(log):
        return None
    return find_cut(log, policy) if estimate_tokens(log, threshold) >= threshold else None


def find_cut(log: Sequence[StampedEvent], policy: CompactionPolicy) -> Cut | None:
    """Return the cut before the turns to keep, or else before the last turn."""
    up_to = _end_before(log, policy.keep) or _end_before(log, 1)
    return None if up_to is None else _cut_at(log, up_to, policy)


def shorter_cut(log: Sequence[StampedEvent], cut: Cut) -> Cut | None:
    """Return a cut for about half as many turns, where even the summary request was too long."""
    ends = [up_to for up_to in _turn_ends(log) if up_to < cut.up_to]
    return replace(cut, up_to=ends[(len(ends) - 1) // 2]) if ends else None


def estimate_tokens(log: Sequence[StampedEvent], stop_at: float = inf) -> int:
    """Return the tokens of the next request: usage of the last response plus later events.

    Later events are estimated; so is everything if no response since the last summary reports
    its usage. Counting stops once `stop_at` is reached.
    """
    total, start = 0.0, 0  # events up to `start` are in the total, or no longer sent
    has_usage = has_summary = False
    for stamped in reversed(log):
        seq, event = stamped.seq, stamped.event
        if seq <= start or total >= stop_at:
            break
        match event:
            case events.Compacted() if not has_usage and not has_summary:
                has_summary, start = True, event.up_to
                total += len(event.summary) / _CHARACTERS_PER_TOKEN
            case events.Assistant(usage=used) if total_tokens(used) and not (
                has_usage or has_summary
            ):
                has_usage, start = True, event.request_head or seq
                total += total_tokens(used)
            case _ if not has_usage or isinstance(event, events.User):
                total += _estimate(event)
            case _:
                pass
    return int(total)


class TokenBound(Struct):
    """Upper bound of `estimate_tokens` for a log that grows: each event is counted once.

    The cost of a turn must not grow with the log, which is read only if the bound is too high.
    """

    _events: int = 0
    _tokens: float = 0  # of all events
    _usage: float = 0  # the highest that a response reported

    def update(self, log: Sequence[StampedEvent], end: int | None = None) -> float:
        """Count the new events of the log, or those up to the `end`, and return the bound."""
        new = log[self._events : end]
        for stamped in new:
            event = stamped.event
            if isinstance(event, events.Assistant) and event.usage:
                self._usage = max(self._usage, total_tokens(event.usage))
            if isinstance(event, events.Compacted):
                self._tokens += len(event.summary) / _CHARACTERS_PER_TOKEN
            elif isinstance(event, _WITH_TOKENS):
                self._tokens += _estimate(event)
        self._events += len(new)
        return self._tokens + self._usage


def _is_fresh(log: Sequence[StampedEvent]) -> bool:
    """Report whether no response has come since the last summary."""
    for stamped in reversed(log):
        if isinstance(stamped.event, events.Assistant | events.Compacted):
            return isinstance(stamped.event, events.Compacted)
    return False


def _end_before(log: Sequence[StampedEvent], keep: int) -> int | None:
    """Return the last event before the last `keep` turns; None if a summary covers it already."""
    answers = 0
    for stamped in reversed(log):
        seq, event = stamped.seq, stamped.event
        if _is_paused(event):
            continue  # part of the response after it
        if answers == keep and isinstance(event, _PARTS_OF_TURN):
            return seq if seq > summary_end(log) else None
        answers += isinstance(event, events.Assistant)
    return None


def _is_paused(event: Event) -> bool:
    return isinstance(event, events.Assistant) and is_paused(event.stop)


def _turn_ends(log: Sequence[StampedEvent]) -> list[int]:
    """Return the last event of each turn that no summary covers, in order."""
    ends: list[int] = []
    start = summary_end(log)
    for stamped in log:
        seq, event = stamped.seq, stamped.event
        if seq <= start or not isinstance(event, _PARTS_OF_TURN) or _is_paused(event):
            continue
        if isinstance(event, events.Assistant):
            ends.append(seq)
        elif ends:
            ends[-1] = seq
    return ends


def summary_end(log: Sequence[StampedEvent]) -> int:
    """Return the last event that a summary covers; 0 without a summary."""
    for stamped in reversed(log):
        if isinstance(stamped.event, events.Compacted):
            return stamped.event.up_to
    return 0


def _cut_at(log: Sequence[StampedEvent], up_to: int, policy: CompactionPolicy) -> Cut:
    messages = (item.event for item in log if isinstance(item.event, events.User))
    first_message = next(messages, None)
    first = (
        policy.first and first_message is not None and _estimate(first_message) <= MAX_FIRST_TOKENS
    )
    redact = any(getattr(item.event, "redact", False) for item in log if item.seq <= up_to)
    return Cut(up_to, first, estimate_tokens(log), redact=redact)


def _estimate(event: Event) -> float:
    match event:
        case events.User():
            return _content_tokens(event.content)
        case events.Assistant():
            return len(event.content) / _CHARACTERS_PER_TOKEN
        case events.ToolCall():
            return len(msgspec.json.encode(event.params)) / _CHARACTERS_PER_TOKEN
        case events.ToolResult():
            return _content_tokens(event.result)
        case _:
            return 0


def _content_tokens(content: Content | dict[str, object]) -> float:
    if isinstance(content, str):
        return len(content) / _CHARACTERS_PER_TOKEN
    if isinstance(content, dict):
        return len(msgspec.json.encode(content)) / _CHARACTERS_PER_TOKEN
    texts = [part["text"] for part in content if isinstance(part.get("text"), str)]
    files = len(content) - len(texts)
    return sum(map(len, texts)) / _CHARACTERS_PER_TOKEN + files * _TOKENS_PER_FILE
