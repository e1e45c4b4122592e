"""When a conversation is too long, and where it is cut: what comes before becomes a summary.

The cut is always between two turns, so that no call is parted from its result. What is cut off
stays in the log; only what the model is told changes.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.log.events import CompactionRequested, Content, Event, Stamped
from perdure.core.log.stop_reasons import is_paused
from perdure.core.session.usage import tokens
from perdure.errors import ConfigError

INSTRUCTIONS: Final = (
    "Write a summary of this conversation up to here, for yourself: it will take the place of "
    "everything above, and you will go on from it without seeing the rest again. Keep what was "
    "asked for and every constraint, what was decided and why, what was done and found out with "
    "exact names, numbers, ids and quotes that may be needed again, what failed, what is still "
    "open, and what was to be done next. Call no tools. Answer with the summary alone."
)
_CHARACTERS: Final = 4  # of text in a token, about
_FILE: Final = 1_500  # tokens of a picture or page, about
FIRST_MOST: Final = 4_000  # tokens of a first message that stays beside the summary
_PARTS_OF_TURN: Final = (events.Assistant, events.ToolCall, events.ToolResult)


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """What an agent says about long conversations."""

    at: Annotated[float, Meta(gt=0)] = 0.8  # up to 1 a share of the window, above it tokens
    keep: Annotated[int, Meta(ge=1)] = 4  # turns at the end that stay as they are
    window: Annotated[int, Meta(ge=1)] | None = None  # tokens; None: what is known of the model
    first: bool = True  # the first message stays too, unless it is long itself
    instructions: Annotated[str, Meta(min_length=1)] = INSTRUCTIONS

    @property
    def needs_window(self) -> bool:
        """Whether the model's own window must be known."""
        return self.at <= 1 and self.window is None

    def most(self, window: int | None) -> float | None:
        """From how many tokens on a conversation is summarised; None: nobody knows."""
        if self.at > 1:
            return self.at
        known = self.window or window
        return None if known is None else self.at * known


def policy_of(said: Mapping[str, Any] | bool, agent: str) -> Policy | None:
    """What an agent says, checked; None: never. ConfigError names the agent and what is wrong."""
    if isinstance(said, bool):
        return Policy() if said else None
    try:
        return msgspec.convert(dict(said), Policy)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise _invalid(agent, str(error)) from error


def _invalid(agent: str, problem: str) -> ConfigError:
    return ConfigError(
        f"agent {agent!r}: compaction: {problem}",
        code="AGENT_INVALID",
        hint=f"it is true, false, or has {', '.join(Policy.__struct_fields__)}",
    )


class Cut(Struct, frozen=True):
    """Where a conversation is parted."""

    up_to: int  # the last event of the last turn before it
    first: bool = False
    tokens: int = 0  # of the whole
    redact: bool = False
    asked: int = 0  # the event by which somebody asked for it; 0: nobody did


def by_hand(
    log: Sequence[Stamped], policy: Policy, wanted: CompactionRequested, asked: int
) -> Cut | None:
    """Where to cut because somebody wants it, however short it is; None: nothing can be cut off."""
    keep = policy.keep if wanted.keep is None else wanted.keep
    found = cut(log, replace(policy, keep=keep))
    return None if found is None else replace(found, asked=asked)


def wanted(log: Sequence[Stamped], policy: Policy, window: int | None) -> Cut | None:
    """Where to cut before the next request, if it has become too long for that.

    There is one summary at most before each answer: only the answer tells what it has brought.
    """
    most = policy.most(window)
    if most is None or _is_fresh(log):
        return None
    return cut(log, policy) if size(log, most) >= most else None


def cut(log: Sequence[Stamped], policy: Policy) -> Cut | None:
    """Where to cut if that must be: before the turns that are kept, else before the last one."""
    up_to = _before(log, policy.keep) or _before(log, 1)
    return None if up_to is None else _at(log, up_to, policy)


def shorter(log: Sequence[Stamped], tried: Cut) -> Cut | None:
    """A cut for a summary of about half as much, where the whole was too much even for that."""
    ends = [up_to for up_to in _ends(log) if up_to < tried.up_to]
    return replace(tried, up_to=ends[(len(ends) - 1) // 2]) if ends else None


def size(log: Sequence[Stamped], enough: float = inf) -> int:
    """How many tokens the next request has: what the last answer reported, and what came after.

    What came after is estimated, and all of it where no answer since the last summary reports
    anything. Whoever has `enough` looks no further.
    """
    total, start = 0.0, 0  # what stands before it is in the total, or not told any more
    is_told = is_shortened = False
    for seq, _, event in reversed(log):
        if seq <= start or total >= enough:
            break
        match event:
            case events.Compacted() if not is_told and not is_shortened:
                is_shortened, start = True, event.up_to
                total += len(event.summary) / _CHARACTERS
            case events.Assistant(usage=used) if tokens(used) and not (is_told or is_shortened):
                is_told, start = True, event.request_head or seq
                total += tokens(used)
            case _ if not is_told or isinstance(event, events.User):
                total += _estimate(event)
            case _:
                pass
    return int(total)


def _is_fresh(log: Sequence[Stamped]) -> bool:
    """Whether no answer has come since the last summary."""
    for _, _, event in reversed(log):
        if isinstance(event, events.Assistant | events.Compacted):
            return isinstance(event, events.Compacted)
    return False


def _before(log: Sequence[Stamped], keep: int) -> int | None:
    """The last event of the turn before the last `keep`; None if a summary has it already."""
    answers = 0
    for seq, _, event in reversed(log):
        if _is_paused(event):
            continue  # it belongs to the answer after it
        if answers == keep and isinstance(event, _PARTS_OF_TURN):
            return seq if seq > covered(log) else None
        answers += isinstance(event, events.Assistant)
    return None


def _is_paused(event: Event) -> bool:
    return isinstance(event, events.Assistant) and is_paused(event.stop)


def _ends(log: Sequence[Stamped]) -> list[int]:
    """The last events of all turns that no summary stands for, in order."""
    ends: list[int] = []
    start = covered(log)
    for seq, _, event in log:
        if seq <= start or not isinstance(event, _PARTS_OF_TURN) or _is_paused(event):
            continue
        if isinstance(event, events.Assistant):
            ends.append(seq)
        elif ends:
            ends[-1] = seq
    return ends


def covered(log: Sequence[Stamped]) -> int:
    """The event up to which a summary stands already; 0 without one."""
    for _, _, event in reversed(log):
        if isinstance(event, events.Compacted):
            return event.up_to
    return 0


def _at(log: Sequence[Stamped], up_to: int, policy: Policy) -> Cut:
    said = next((event for _, _, event in log if isinstance(event, events.User)), None)
    first = policy.first and said is not None and _estimate(said) <= FIRST_MOST
    hidden = any(getattr(event, "redact", False) for seq, _, event in log if seq <= up_to)
    return Cut(up_to, first, size(log), redact=hidden)


def _estimate(event: Event) -> float:
    match event:
        case events.User():
            return _tokens_in(event.content)
        case events.Assistant():
            return len(event.content) / _CHARACTERS
        case events.ToolCall():
            return len(msgspec.json.encode(event.params)) / _CHARACTERS
        case events.ToolResult():
            return _tokens_in(event.result)
        case _:
            return 0


def _tokens_in(content: Content | dict[str, object]) -> float:
    if isinstance(content, str):
        return len(content) / _CHARACTERS
    if isinstance(content, dict):
        return len(msgspec.json.encode(content)) / _CHARACTERS
    texts = [part["text"] for part in content if isinstance(part.get("text"), str)]
    files = len(content) - len(texts)
    return sum(map(len, texts)) / _CHARACTERS + files * _FILE
