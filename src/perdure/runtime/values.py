"""Context of a running tool."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import TypeVar

from perdure.errors import Refused
from perdure.views.calls import COMPLETED, Decision, PendingCall
from perdure.views.tasks import SandboxTask

if TYPE_CHECKING:
    from perdure.app.runtime import Runtime

D_co = TypeVar("D_co", covariant=True, default=Any)


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
    _runtime: Callable[[str], Any] | None = field(default=None, repr=False, compare=False)
    _task: Callable[[], Awaitable[SandboxTask]] | None = field(
        default=None, repr=False, compare=False
    )
    _shell: Callable[[str, float], Awaitable[str]] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def runtime(self) -> "Runtime":
        """The runtime that drives this session, for its tenant only. An async tool awaits it."""
        if self._runtime is None:
            raise _outside_a_session("runtime")
        return self._runtime(self.tenant)  # type: ignore[no-any-return]

    async def task(self) -> SandboxTask:
        """Return the task of this session, in which `execute_command` runs; create it first."""
        if self._task is None:
            raise _outside_a_session("task")
        return await self._task()

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


def _outside_a_session(name: str) -> Refused:
    return Refused(
        f"this context has no {name}: it does not belong to a running call",
        code="NOT_BOUND",
        hint="use it in a tool that a session runs",
    )
