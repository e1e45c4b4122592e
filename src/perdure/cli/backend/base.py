"""Protocols of a backend: a runtime in this process or a server, with every value as JSON.

The JSON shapes are those of the HTTP API, so that a command is written once and prints the same.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import IO, Any, Protocol

from perdure.runtime.values import Content

Json = dict[str, Any]
Options = Mapping[str, Any]  # the options of a command


class Handle(Protocol):
    """One session, which need not exist yet."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    async def get(self) -> Json:
        """Return the session as it stands now. Raises NotFound."""
        ...

    async def events(self, *, after: int = 0) -> list[Json]:
        """Return its events after a seq."""
        ...

    def follow(self, *, after: int = 0) -> AsyncIterator[Json]:
        """Iterate over its events after a seq, including those to come, without end."""
        ...

    def stream(self, message: Content | None, key: str | None) -> AsyncIterator[Json]:
        """Continue it, perhaps with a message: yields events, deltas, and last the session."""
        ...

    async def send(self, message: Content, key: str | None) -> Json:
        """Record a message, and return the session."""
        ...

    async def state(self) -> Json:
        """Return the execution states of its paused runs, and its open calls."""
        ...

    async def permissions(self) -> list[Json]:
        """Return the permissions that approvers granted for the rest of it."""
        ...

    async def revoke(self, number: int, by: str | None) -> None:
        """Revoke the permission with this number. Raises NotFound."""
        ...

    async def resume(self) -> None:
        """Make it due now, so that a model request that backs off is sent at once."""
        ...

    async def cancel(self, by: str | None, reason: str | None) -> Json:
        """Cancel its run, and return the session."""
        ...

    async def compact(self, options: Options) -> Json:
        """Let the model summarize it, and return the session."""
        ...

    async def fork(self, at: int | None, new_id: str | None) -> "Handle":
        """Copy it up to an event at which every call is settled."""
        ...

    async def delete(self) -> None:
        """Delete it."""
        ...


class ExecutionBackend(Protocol):
    """Commands in the tasks of one tenant. Durations are ms."""

    async def start(self, task_id: str, command: str, options: Options) -> Json:
        """Start a command."""
        ...

    async def list(self, task_id: str, limit: int = 50, after: str | None = None) -> Json:
        """List the commands of a task, newest first."""
        ...

    async def get(self, task_id: str, execution_id: str) -> Json:
        """Return a command, with its output once it has ended. Raises NotFound."""
        ...

    async def cancel(self, task_id: str, execution_id: str) -> Json:
        """Stop a command."""
        ...

    def follow(self, task_id: str, execution_id: str) -> AsyncGenerator[Json | None, None]:
        """Iterate over the output of a command, and last its end; None after a pause."""
        ...


class AnyTaskBackend(Protocol):
    """Tasks of every kind, of one tenant or of all."""

    async def list(self, filters: Options) -> Json:
        """List tasks, newest first, with the number of all that match."""
        ...

    async def get(self, task_id: str) -> Json:
        """Return a task. Raises NotFound."""
        ...

    async def cancel(self, task_id: str) -> Json:
        """Cancel a task that has not ended."""
        ...

    async def delete(self, task_id: str) -> Json:
        """Delete a task."""
        ...

    async def output(
        self,
        task_id: str,
        *,
        block: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - limits the waiting, not the run
    ) -> Json:
        """Return the outcome of a background agent; with `block`, after at most `timeout` ms."""
        ...

    async def resume(
        self,
        task_id: str,
        message: str,
        *,
        block: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - limits the waiting, not the run
        key: str | None = None,
    ) -> Json:
        """Send a follow-up to a completed background agent."""
        ...

    async def clear(self, parent: str) -> Json:
        """Cancel the running background agents of a session and remove all from lists."""
        ...


class TaskBackend(Protocol):
    """Shared tasks of one tenant, or of all."""

    @property
    def executions(self) -> ExecutionBackend:
        """The commands in the tasks."""
        ...

    async def read_file(self, task_id: str, path: str) -> bytes:
        """Return a file of a workspace."""
        ...

    async def list_files(self, task_id: str, folder: str = "") -> Json:
        """Return the entries of a folder of a workspace."""
        ...

    async def write_file(self, task_id: str, path: str, content: bytes) -> Json:
        """Create or replace a file of a workspace."""
        ...

    async def create(self, config: Options) -> Json:
        """Create a task."""
        ...

    async def attach(self, task_id: str, agent_id: str) -> Json:
        """Attach an agent."""
        ...

    async def detach(self, task_id: str, agent_id: str) -> Json:
        """Detach an agent."""
        ...

    async def start(self, task_id: str, agent_id: str) -> Json:
        """Start a pending task."""
        ...

    async def complete(self, task_id: str, result: Options) -> Json:
        """Complete a running task."""
        ...

    async def fail(self, task_id: str, error: str) -> Json:
        """Fail a running task."""
        ...

    async def logs(self, task_id: str, options: Options) -> Json:
        """Return the log of a task."""
        ...

    def follow_logs(self, task_id: str, after: int = 0) -> AsyncIterator[Json | None]:
        """Iterate over the records of a log, also those to come; None after a pause."""
        ...

    async def decisions(self, task_id: str) -> Json:
        """Return the decisions of a task's agents."""
        ...

    async def checkpoint(self, task_id: str, description: str | None = None) -> Json:
        """Take a checkpoint."""
        ...

    async def checkpoints(self, task_id: str) -> Json:
        """List the checkpoints of a task."""
        ...

    async def restore(
        self, task_id: str, checkpoint_id: str, paths: Sequence[str] | None = None
    ) -> Json:
        """Restore a checkpoint."""
        ...

    async def diff(self, task_id: str, checkpoint_id: str, other_id: str | None = None) -> Json:
        """Compare a checkpoint with another one, or with the workspace."""
        ...

    async def verify(self, task_id: str, checkpoint_id: str) -> Json:
        """Verify every object of a checkpoint."""
        ...

    async def delete_checkpoint(self, task_id: str, checkpoint_id: str) -> Json:
        """Delete a checkpoint."""
        ...

    async def export(self, task_id: str, checkpoint_id: str, file: IO[bytes]) -> Json:
        """Write a checkpoint into an open file."""
        ...

    async def import_(self, task_id: str, file: IO[bytes]) -> Json:
        """Add the exported checkpoint in an open file to a task."""
        ...


class Backend(Protocol):
    """Sessions and pending calls of one tenant, or of all."""

    @property
    def tasks(self) -> TaskBackend:
        """The tasks that agents and people share."""
        ...

    @property
    def any_tasks(self) -> AnyTaskBackend:
        """Tasks of every kind."""
        ...

    def now(self) -> int:
        """Return the present instant in ms, to compute ages from."""
        ...

    def is_driven_here(self, agent: str) -> bool:
        """Return True if streaming a session of this agent drives it in this process."""
        ...

    def may_show_thinking(self, agent: str) -> bool:
        """Return True if the thinking of this agent's model may be printed."""
        ...

    def session(
        self,
        session_id: str,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        queue: str | None = None,
    ) -> Handle:
        """Return the handle of a session, in the tenant of the options unless one is given."""
        ...

    def sessions(self, *, is_complete: bool) -> AsyncIterator[Json]:
        """Iterate over all sessions; only if complete, with the fields that need their logs."""
        ...

    def pending(self, session: Json | None, status: str | None) -> AsyncIterator[Json]:
        """Iterate over pending calls, all or of one session: open ones, or with this status."""
        ...

    async def pending_call(self, pending_id: str) -> Json:
        """Return one pending call, open or settled. Raises NotFound."""
        ...

    async def statistics(self, hours: int) -> Json:
        """Return how many calls were made, settled and expired per hour, and how fast."""
        ...

    async def settle(self, verb: str, call: Json, options: Options) -> Json:
        """Settle a call, and return it with `duplicate`."""
        ...

    async def decide(self, verb: str, calls: Sequence[Json], options: Options) -> list[Json]:
        """Decide about several calls, all or none, and return each with `duplicate`."""
        ...


def session_handle(backend: Backend, session: Json) -> Handle:
    """Return the handle of a session from its JSON."""
    return backend.session(session["sessionID"], tenant=session["tenant"])
