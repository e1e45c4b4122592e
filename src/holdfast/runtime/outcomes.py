"""What becomes of what a drive has begun: how tools and models come back, as values."""

from collections.abc import Mapping

from msgspec import Struct

from holdfast.core.conversation.compaction import Cut
from holdfast.core.conversation.messages import Answer
from holdfast.core.driver.verdicts import Verdict
from holdfast.core.log import events
from holdfast.errors import HoldfastError


class ToolReturned(Struct, frozen=True):
    """A tool came back, well or not."""

    call_id: str
    content: events.Content
    is_error: bool = False


class StartReturned(Struct, frozen=True):
    """The start of a deferred tool came back."""

    call_id: str
    news: events.Progress


class Answered(Struct, frozen=True):
    """A model answered a request made at this head."""

    turn: int
    request_head: int
    answer: Answer
    verdicts: tuple[Verdict, ...]
    redact: Mapping[str, tuple[str, ...]] = {}  # by call


class ModelFailed(Struct, frozen=True):
    """A model did not answer."""

    turn: int
    request_head: int
    error: HoldfastError
    cut: Cut | None = None  # of the summary that it was asked for


class Summarised(Struct, frozen=True):
    """A model summarised what was said before a cut."""

    turn: int
    request_head: int
    cut: Cut
    answer: Answer


Outcome = ToolReturned | StartReturned | Answered | ModelFailed | Summarised
