"""Views of tasks: shared ones with their commands, files and checkpoints, and background agents."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, ClassVar, Final, Literal, Protocol, TypeVar

from msgspec import field

from perdure.errors import Conflict
from perdure.views.base import Error, View, Word, bind, bound_verbs, instant
from perdure.views.calls import CallOwner, PendingCall
from perdure.views.findings import Finding
from perdure.views.values import Content, Duration, parse_duration

T = TypeVar("T")

TaskStatus = Literal["pending", "running", "completed", "failed", "cancelled"]
ChildStatus = Literal["running", "completed", "error", "cancelled", "resumed"]
LogLevel = Literal["info", "warn", "error", "debug"]

PAGE: Final = 500  # tasks that a list of all reads at a time


class WaitingApproval(View, frozen=True, kw_only=True):
    """A call for which a background agent waits for approvers."""

    pending_id: str
    kind: Word[Literal["approval", "question"]]
    tool: str
    prompt: str | None
    approvers: tuple[str, ...]
    missing_approvals: int


class CommandAvailability(View, frozen=True, kw_only=True):
    """The sandbox in which commands run here, or the reason why none can run."""

    available: bool
    sandbox: str
    reason: str | None = None
    remedy: str | None = None
    guarantees: tuple[str, ...] = ()


class _Task(View, frozen=True, kw_only=True):
    """Fields of a task of any kind."""

    id: str
    name: str
    agents: tuple[str, ...]
    tenant: str
    created_at_ms: int
    updated_at_ms: int

    @property
    def created_at(self) -> datetime:
        """The instant when it was created."""
        return instant(self.created_at_ms)

    @property
    def updated_at(self) -> datetime:
        """The instant of its last change."""
        return instant(self.updated_at_ms)


class SandboxTask(_Task, frozen=True, kw_only=True, tag="sandbox", tag_field="kind"):
    """A task with a workspace that agents share."""

    kind: ClassVar[Literal["sandbox"]] = "sandbox"
    status: Word[TaskStatus]
    owner: str
    metadata: dict[str, Any]
    result: dict[str, Any] | None
    host: str
    sandbox: str
    execution: CommandAvailability | None = None  # whether commands can run; null in lists
    findings: tuple[Finding, ...] = ()  # what is wrong with it; a list reads only the task


class DetachedAgent(SandboxTask, frozen=True, kw_only=True):
    """A task from which an agent was detached, if it was attached."""

    agent_id: str
    detached: bool


class BackgroundTask(_Task, frozen=True, kw_only=True, tag="background", tag_field="kind"):
    """A background agent; a list reads no sessions, and has nothing of what they say."""

    kind: ClassVar[Literal["background"]] = "background"
    status: Word[ChildStatus]
    agent: str
    description: str
    session_id: str
    parent: str | None
    ancestry: tuple[str, ...]
    resume_count: int
    queued: bool = False  # a follow-up waits until the run has ended
    waiting_for: tuple[WaitingApproval, ...] = ()
    findings: tuple[Finding, ...] = ()
    state: str | None = None  # of its session, like all that follows
    output_json: Any = field(default=None, name="output")
    error: Error | None = None
    pending: tuple[PendingCall, ...] = ()

    async def get(self) -> "BackgroundTask":
        """Return the task as it is now. Raises NotFound."""
        return as_background(await self._verbs("get").get(self.id))

    async def output(self, *, block: bool = False, timeout: Duration = 60) -> "AgentOutcome":  # noqa: ASYNC109 - limits the waiting
        """Return the outcome of its run; with `block`, once it has ended or the time is over.

        Reading never takes the outcome from its parent.
        """
        ms = parse_duration(timeout)
        return await self._verbs("output").output(self.id, block=block, timeout=ms)

    async def resume(
        self,
        message: Content,
        *,
        block: bool = False,
        timeout: Duration = 60,  # noqa: ASYNC109 - limits the waiting, not the run
        key: str | None = None,
    ) -> "AgentOutcome":
        """Send a follow-up; with `block`, wait for the answer and take it.

        Without `block`, or if the time is over first, its parent is notified. Raises Conflict if
        the task does not take one now.
        """
        ms, verbs = parse_duration(timeout), self._verbs("resume")
        return await verbs.resume(self.id, message, block=block, timeout=ms, key=key)

    async def cancel(self, *, by: str | None = None, reason: str | None = None) -> "BackgroundTask":
        """Cancel its run. Raises Conflict if it has ended."""
        cancelled = await self._verbs("cancel").cancel(self.id, by=by, reason=reason)
        return as_background(cancelled)

    async def delete(self) -> "DeletedTask":
        """Erase its session and everything below it."""
        return await self._verbs("delete").delete(self.id)

    def _verbs(self, verb: str) -> "TaskOwner":
        again = f"task = await rt.background_task({self.id!r})"
        hint = f"await rt.tasks.{verb}({self.id!r}, …), or read it again: {again}"
        verbs: TaskOwner = bound_verbs(self, f"task {self.id}", hint)
        return verbs


AnyTask = SandboxTask | BackgroundTask


class AgentOutcome(View, frozen=True, kw_only=True):
    """A background agent with the outcome of its run, or a message about what it waits for."""

    task: BackgroundTask
    output: str | None = None
    error: str | None = None
    message: str | None = None

    @property
    def has_ended(self) -> bool:
        """True if there is an outcome."""
        return self.output is not None or self.error is not None


class TaskPage(View, frozen=True, kw_only=True):
    """Page of a list of tasks; `count` is the number of all that match.

    `next` is the cursor of the next page, in lists of tasks of every kind.
    """

    tasks: tuple[AnyTask, ...]
    count: int
    next: str | None = None


class TaskOwner(Protocol):
    """Tasks of a runtime or client of which a task came, with the verbs on it; timeouts are ms."""

    async def get(self, task_id: str) -> AnyTask:
        """Return a task."""

    async def output(
        self,
        task_id: str,
        *,
        block: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - limits the waiting, not the run
    ) -> AgentOutcome:
        """Return an outcome."""

    async def resume(
        self,
        task_id: str,
        message: Content,
        *,
        block: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - limits the waiting, not the run
        key: str | None = None,
    ) -> AgentOutcome:
        """Send a follow-up."""

    async def cancel(
        self, task_id: str, *, by: str | None = None, reason: str | None = None
    ) -> AnyTask:
        """Cancel a task."""

    async def delete(self, task_id: str) -> "DeletedTask":
        """Delete a task."""


def with_verbs(view: T, tasks: TaskOwner, calls: CallOwner) -> T:
    """Return a task or an outcome whose task, and the calls of which, have verbs."""
    task = view.task if isinstance(view, AgentOutcome) else view
    if isinstance(task, BackgroundTask):
        bind(task, _owner=tasks)
        for call in task.pending:
            bind(call, _owner=calls)
    return view


async def every_task(
    list_page: Callable[[Mapping[str, Any]], Awaitable[TaskPage]], filters: Mapping[str, Any]
) -> AsyncIterator[AnyTask]:
    """Yield all tasks that match, newest first, each once."""
    cursor: str | None = None
    while True:
        page = await list_page({**filters, "limit": PAGE, "cursor": cursor})
        for task in page.tasks:
            yield task
        cursor = page.next
        if cursor is None:
            return


def as_background(task: AnyTask) -> BackgroundTask:
    """Return the task of a background agent. Raises Conflict for another kind."""
    if isinstance(task, BackgroundTask):
        return task
    raise Conflict(
        f"task {task.id} is a shared task, not a background agent",
        code="WRONG_KIND",
        hint=f"read it with tasks.get({task.id!r})",
    )


class ChangedTask(View, frozen=True, kw_only=True, tag="task", tag_field="type"):
    """Item of a stream: a task that is new on its page, or has changed."""

    task: AnyTask


class RemovedTask(View, frozen=True, kw_only=True, tag="removed", tag_field="type"):
    """Item of a stream: a task that has left its page, or was deleted."""

    task_id: str
    tenant: str


class DeletedTask(View, frozen=True, kw_only=True):
    """A task that was deleted with everything it had."""

    task_id: str
    message: str


class ClearedAgents(View, frozen=True, kw_only=True):
    """The background agents of a session that were removed from its lists."""

    parent: str
    cleared: int
    tasks: tuple[BackgroundTask, ...]


# --- logs and decisions ---------------------------------------------------------------------------


class LogLine(View, frozen=True, kw_only=True):
    """Entry of a task's log; its timestamp is ISO 8601, as its author wrote it."""

    timestamp: str
    level: Word[LogLevel]
    message: str
    data: dict[str, Any] | None = None


class TaskLog(View, frozen=True, kw_only=True):
    """Log entries of a task, oldest first."""

    task_id: str
    logs: tuple[LogLine, ...]


class LogRecord(View, frozen=True, kw_only=True, tag="log", tag_field="type"):
    """Item of a stream: the log entries of one record."""

    seq: int
    lines: tuple[LogLine, ...]


class AppendedLogs(View, frozen=True, kw_only=True):
    """The number of log entries that were appended to a task."""

    task_id: str
    count: int


class TaskDecision(View, frozen=True, kw_only=True):
    """A decision of an agent, with its reasoning; its timestamp is ISO 8601."""

    timestamp: str
    agent_id: str
    decision: str
    reasoning: str = ""
    metadata: dict[str, Any] | None = None


class TaskDecisions(View, frozen=True, kw_only=True):
    """The decisions of the agents of a task, oldest first."""

    task_id: str
    decisions: tuple[TaskDecision, ...]


# --- commands and files ---------------------------------------------------------------------------


class Execution(View, frozen=True, kw_only=True):
    """A command in a task; its output is null while it is not known here. Durations are ms."""

    execution_id: str
    task_id: str
    command: str
    status: Word[Literal["running", "ended"]]
    by: str | None
    timeout: int
    started_at_ms: int
    ended_at_ms: int | None
    success: bool | None
    exit_code: int | None
    duration: int | None
    reason: str | None
    signal: int | None
    truncated: bool
    sandbox: str
    guarantees: tuple[str, ...]
    stdout_bytes: int
    stderr_bytes: int
    problem: str | None
    stdout: str | None = None
    stderr: str | None = None

    @property
    def started_at(self) -> datetime:
        """The instant of its start."""
        return instant(self.started_at_ms)

    @property
    def ended_at(self) -> datetime | None:
        """The instant of its end; None while it runs."""
        return None if self.ended_at_ms is None else instant(self.ended_at_ms)


class ExecutionPage(View, frozen=True, kw_only=True):
    """Page of the commands that ran in a task, newest first, without their output."""

    task_id: str
    executions: tuple[Execution, ...]
    next: str | None


class StartedCommand(View, frozen=True, kw_only=True, tag="started", tag_field="type"):
    """Item of a stream: a command that was started."""

    execution: Execution


class CommandOutput(View, frozen=True, kw_only=True, tag="output", tag_field="type"):
    """Item of a stream: a piece of the output of a command."""

    channel: Word[Literal["stdout", "stderr"]]
    text: str


class FinishedCommand(View, frozen=True, kw_only=True, tag="finished", tag_field="type"):
    """Item of a stream: a command that has ended. It is the last one."""

    execution: Execution


class WrittenFile(View, frozen=True, kw_only=True):
    """A file of a workspace that was written."""

    task_id: str
    path: str
    bytes: int


class FileInfo(View, frozen=True, kw_only=True):
    """An entry of a folder; `path` is null where it cannot be read."""

    name: str
    type: Word[Literal["file", "folder", "other"]]
    bytes: int
    path: str | None


class FolderListing(View, frozen=True, kw_only=True):
    """The entries of a folder of a workspace."""

    task_id: str
    folder: str
    files: tuple[FileInfo, ...]


# --- checkpoints ----------------------------------------------------------------------------------


class Checkpoint(View, frozen=True, kw_only=True):
    """A checkpoint of a task; `problem` says why it cannot be read."""

    checkpoint_id: str
    task_id: str
    created_at_ms: int
    description: str
    files: int
    bytes: int
    paths: tuple[str, ...] = ()  # of its files, in a list
    problem: str | None = None

    @property
    def created_at(self) -> datetime:
        """The instant when it was taken."""
        return instant(self.created_at_ms)


class CheckpointList(View, frozen=True, kw_only=True):
    """The checkpoints of a task, newest first."""

    task_id: str
    checkpoints: tuple[Checkpoint, ...]


class RestoredCheckpoint(View, frozen=True, kw_only=True):
    """A checkpoint that was restored, and where the workspace before is.

    If it could not be saved, `savedAs` is null, and there are `keptAs` and `problem`.
    """

    task_id: str
    checkpoint_id: str
    saved_as: str | None = None
    kept_as: str | None = None
    problem: str | None = None


class CheckpointChanges(View, frozen=True, kw_only=True):
    """The paths in which a checkpoint differs from another one, or from the workspace."""

    task_id: str
    checkpoint_id: str
    other_id: str | None
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]


class VerifiedCheckpoint(View, frozen=True, kw_only=True):
    """A checkpoint whose objects were all verified, and what is wrong with them."""

    task_id: str
    checkpoint_id: str
    ok: bool
    problems: tuple[str, ...]


class DeletedCheckpoint(View, frozen=True, kw_only=True):
    """A checkpoint that was deleted."""

    task_id: str
    checkpoint_id: str
