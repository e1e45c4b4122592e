"""The values that users hold and hand over: files, decisions, waiting calls, and the context."""

import mimetypes
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Generic, Literal, Self

from typing_extensions import TypeVar

from perdure.core.durations import duration_ms
from perdure.errors import PerdureError, Refused

Duration = str | float | timedelta
State = Literal["pending", "running", "waiting", "completed", "failed", "cancelled"]
Kind = Literal["tool", "approval", "question", "child", "timer"]
PendingStatus = Literal["waiting", "processing", "completed", "failed", "expired", "cancelled"]

D_co = TypeVar("D_co", covariant=True, default=Any)


def parse_duration(value: Duration) -> int:
    """Whole milliseconds of a duration: seconds, text such as `"1h30m"`, or a timedelta."""
    return duration_ms(value.total_seconds() if isinstance(value, timedelta) else value)


@dataclass(frozen=True, slots=True)
class File:
    """A file in a message or in what a tool returns: its bytes, or a url that we never fetch."""

    media_type: str
    data: bytes | None = field(default=None, repr=False)
    url: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if (self.data is None) == (self.url is None):
            raise Refused("a File has either data or a url", code="FILE_INVALID")
        if "/" not in self.media_type:
            raise Refused(
                f"{self.media_type!r} is not a media type",
                code="FILE_INVALID",
                hint="write it as in image/png",
            )

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """The file at a path, now; its media type is guessed from its name."""
        where = Path(path)
        return cls(_media_type(where.name), data=where.read_bytes(), name=where.name)


Content = str | File | Sequence[str | File]


def _media_type(name: str) -> str:
    guess, encoding = mimetypes.guess_type(name, strict=False)
    if encoding is not None:  # what is inside a .tar.gz is not what the bytes are
        return "application/gzip" if encoding == "gzip" else "application/octet-stream"
    return guess or "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person decided about a waiting call."""

    kind: Literal["approve", "edit", "deny", "respond"]
    by: str
    via: str
    at: datetime
    args: Mapping[str, Any] | None = field(default=None, hash=False)
    reason: str | None = None
    note: str | None = None
    remember: bool | str = False  # for the rest of the session


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCall:
    """The record of a call that waits.

    A tool parameter so annotated gets its own, and is not in the schema.
    """

    id: str
    kind: Kind
    status: PendingStatus
    session_id: str
    tenant: str = ""
    agent: str
    tool: str
    args: Mapping[str, Any] = field(hash=False)
    call_id: str
    effect_id: str
    prompt: str | None = None
    external_ref: str | None = None
    created_at: datetime
    expires_at: datetime | None = None
    decision: Decision | None = None
    ancestry: tuple[str, ...] = ()
    problem: PerdureError | None = None
    callback_url: str | None = None
    _secret: Callable[[], str] | None = field(default=None, repr=False, compare=False)
    _mark_started: Callable[[], Awaitable[None]] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def callback_secret(self) -> str:
        """What signs the result; only inside the tool of this call, Refused elsewhere."""
        if self._secret is None:
            raise Refused(
                f"the callback secret of {self.id} is known only inside its tool",
                code="NOT_IN_TOOL",
                hint="read call.callback_secret in the tool, and hand it to what calls back",
            )
        return self._secret()

    async def mark_started(self) -> None:
        """The work outside has begun: the call is `processing`. Again, or outside: no effect."""
        if self._mark_started is not None:
            await self._mark_started()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(Generic[D_co]):
    """Where a tool, predicate or instruction runs.

    A tool parameter so annotated is injected, and is not in the schema. Outside a call `tool`,
    `args`, `call_id` and `effect_id` are empty.
    """

    deps: D_co = field(repr=False)  # where secrets belong
    session_id: str = ""
    tenant: str = ""
    agent: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    tool: str = ""
    args: Mapping[str, Any] = field(default_factory=dict, hash=False)
    call_id: str = ""
    effect_id: str = ""
    attempt: int = 1
    decision: Decision | None = None
    pending: PendingCall | None = None
    _progress: Callable[[str, float | None], Awaitable[None]] | None = field(
        default=None, repr=False, compare=False
    )

    async def progress(self, message: str, percent: float | None = None) -> None:
        """Tell people, never the model, how far it is. Outside of a run: no effect."""
        if percent is not None and not 0 <= percent <= 100:
            raise Refused(
                f"percent is {percent}, and must be from 0 to 100", code="PROGRESS_INVALID"
            )
        if self._progress is not None:
            await self._progress(message, percent)
