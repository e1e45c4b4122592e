"""Values of the public API: files, decisions, pending calls, and the context of a tool."""

import mimetypes
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Generic, Self

from typing_extensions import TypeVar

from perdure.core.durations import duration_ms
from perdure.core.literals import CallKind, DecisionKind, PendingStatus
from perdure.core.pending.requests import request_message
from perdure.errors import PerdureError, Refused
from perdure.runtime.thread_calls import COMPLETED

Duration = str | float | timedelta

D_co = TypeVar("D_co", covariant=True, default=Any)


def parse_duration(value: Duration) -> int:
    """Return whole milliseconds of a duration: seconds, text such as `"1h30m"`, or a timedelta."""
    return duration_ms(value.total_seconds() if isinstance(value, timedelta) else value)


@dataclass(frozen=True, slots=True)
class File:
    """A file in a message or a tool result: its bytes, or a URL that perdure never fetches."""

    media_type: str
    data: bytes | None = field(default=None, repr=False)
    url: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if (self.data is None) == (self.url is None):
            raise Refused(
                "a File has either data or a url",
                code="FILE_INVALID",
                hint="pass exactly one of data= and url=",
            )
        if "/" not in self.media_type:
            raise Refused(
                f"{self.media_type!r} is not a media type",
                code="FILE_INVALID",
                hint="write it as in image/png",
            )

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read the file at a path; its media type is guessed from its name."""
        source = Path(path)
        return cls(_media_type(source.name), data=source.read_bytes(), name=source.name)


Content = str | File | Sequence[str | File]


def _media_type(name: str) -> str:
    guess, encoding = mimetypes.guess_type(name, strict=False)
    if encoding is not None:  # the guess is for the content of a .tar.gz, not for its bytes
        return "application/gzip" if encoding == "gzip" else "application/octet-stream"
    return guess or "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Decision:
    """An approver's decision about a pending call."""

    kind: DecisionKind
    by: str
    via: str
    at: datetime
    args: Mapping[str, Any] | None = field(default=None, hash=False)
    reason: str | None = None
    note: str | None = None
    remember: bool | str = False  # for the rest of the session


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCall:
    """A pending call.

    A tool parameter with this annotation receives its own call and is not in the schema.
    """

    id: str
    kind: CallKind
    status: PendingStatus
    session_id: str
    tenant: str = ""
    agent: str
    tool: str
    args: Mapping[str, Any] = field(hash=False)
    call_id: str
    effect_id: str
    task_id: str = ""
    prompt: str | None = None
    reason: str | None = None  # why it waits: interrupted, raised, budget
    external_ref: str | None = None
    created_at: datetime
    expires_at: datetime | None = None
    decision: Decision | None = None
    details: Mapping[str, Any] | None = field(default=None, hash=False)
    schema: Mapping[str, Any] | None = field(default=None, hash=False)
    choices: tuple[Any, ...] | None = field(default=None, hash=False)
    allowed_decisions: tuple[DecisionKind, ...] = ()
    approvers: tuple[str, ...] = ()  # names and roles; empty: everyone who may decide
    votes: tuple[Decision, ...] = ()  # approvals so far, if it needs several
    missing_approvals: int = 0
    started_by: tuple[str, ...] = ()  # authors of the run
    ancestry: tuple[str, ...] = ()
    problem: PerdureError | None = None
    callback_url: str | None = None
    _secret: Callable[[], str] | None = field(default=None, repr=False, compare=False)
    _mark_started: Callable[[], Awaitable[None]] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def callback_secret(self) -> str:
        """The secret that signs the result. Refused outside the tool of this call."""
        if self._secret is None:
            raise Refused(
                f"the callback secret of {self.id} is available only inside its tool",
                code="NOT_IN_TOOL",
                hint="read call.callback_secret in the tool, and pass it to the submitter",
            )
        return self._secret()

    @property
    def request(self) -> dict[str, Any]:
        """The message that asks an approver about this call, as text and as data."""
        return request_message(
            kind=self.kind,
            prompt=self.prompt,
            decisions=self.allowed_decisions,
            tool_name=self.tool,
            tool_input=dict(self.args),
            tool_call_id=self.call_id,
            task_id=self.task_id,
            pending_id=self.id,
            expires_at=self.expires_at and round(self.expires_at.timestamp() * 1000),
            details=self.details and dict(self.details),
            schema=self.schema and dict(self.schema),
            choices=self.choices and list(self.choices),
        )

    def mark_started(self) -> Awaitable[None]:
        """Mark the external work as started (`processing`). No effect outside the tool.

        An async tool awaits it; in a plain function it is done when the call returns.
        """
        return COMPLETED if self._mark_started is None else self._mark_started()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(Generic[D_co]):
    """Context of a running tool, predicate or instruction.

    A tool parameter with this annotation is injected and is not in the schema. Outside a call,
    `tool`, `args`, `call_id` and `effect_id` are empty.
    """

    deps: D_co = field(repr=False)  # not shown: it may hold secrets
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
    decisions: tuple[Decision, ...] = ()  # that this call asked for with ApprovalRequired
    answers: tuple[Any, ...] = field(default=(), hash=False)  # to its InputRequired, in order
    _progress: Callable[[str, float | None], Awaitable[None]] | None = field(
        default=None, repr=False, compare=False
    )
    _children: Any = field(default=None, repr=False, compare=False)  # for background tools
    _shell: Callable[[str, float], Awaitable[str]] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def answer(self) -> Any:
        """The last answer to a question that this call asked with InputRequired; None before."""
        return self.answers[-1] if self.answers else None

    @property
    def pending_id(self) -> str | None:
        """The pending id of a deferred call, under which its result is submitted; else None."""
        return None if self.pending is None else self.pending.id

    def mark_started(self) -> Awaitable[None]:
        """Mark the external work of a deferred call as started; no effect for other calls.

        An async tool awaits it; in a plain function it is done when the call returns.
        """
        return COMPLETED if self.pending is None else self.pending.mark_started()

    def progress(self, message: str, percent: float | None = None) -> Awaitable[None]:
        """Report progress to readers, never to the model. No effect outside a run.

        An async tool awaits it; in a plain function it is done when the call returns.
        """
        if percent is not None and not 0 <= percent <= 100:
            raise Refused(
                f"percent is {percent}, and must be from 0 to 100",
                code="PROGRESS_INVALID",
                hint="leave percent out if it is not known",
            )
        return COMPLETED if self._progress is None else self._progress(message, percent)
