"""Lifecycle of tasks: created, started, completed, failed, cancelled, deleted; agents attached."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.core.session.naming import check_id
from perdure.errors import Conflict
from perdure.store.base import Gone, NoStream, Store, VersionMoved
from perdure.tasks.entries import TaskEntry, get_task
from perdure.tasks.hooks import HookRunner
from perdure.tasks.locks.values import LockInfo
from perdure.tasks.model import record, state_file
from perdure.tasks.model.facts import FactType, LogLevel, TaskFact
from perdure.tasks.model.record import TaskRecord
from perdure.tasks.model.state_file import TaskState
from perdure.tasks.model.status import Status, TaskMove, moved
from perdure.tasks.values import (
    TaskRef,
    TaskResult,
    check_result,
    check_storable,
    invalid,
    task_not_found,
)
from perdure.tasks.writer import TaskCommit, TaskWriter, new_fact
from perdure.views.base import iso
from perdure.views.literals import HookType

Changes = Callable[[TaskRecord], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Transition:
    """One move of a task: its fact, and what it changes in the row."""

    move: TaskMove
    fact: FactType
    level: LogLevel = "info"
    data: Callable[[TaskRecord], dict[str, Any] | None] = lambda _: None
    changes: Changes = lambda _: {}
    before: HookType | None = None
    after: HookType | None = None
    argument: Any = None  # of the hooks


class Lifecycle:
    """Transitions of tasks: validate, run before-hooks, compare and set, run after-hooks."""

    def __init__(
        self, store: Store, writer: TaskWriter, hooks: HookRunner, on_end: Callable[[str], None]
    ) -> None:
        self._store = store
        self._writer = writer
        self._hooks = hooks
        self._on_end = on_end  # called with the stream of each task that has ended

    def with_hooks(self, hooks: HookRunner) -> "Lifecycle":
        """Return a lifecycle that runs other hooks."""
        return Lifecycle(self._store, self._writer, hooks, self._on_end)

    @property
    def hooks(self) -> HookRunner:
        """The hooks that it runs."""
        return self._hooks

    async def start(self, ref: TaskRef, agent_id: str, guard: LockInfo | None = None) -> TaskRecord:
        """Start a pending task, with its first agent. Raises NotFound, Conflict."""
        agent = check_id(agent_id, "agent id")
        transition = Transition(
            TaskMove.START,
            "task_started",
            data=lambda _: {"agentId": agent},
            changes=lambda row: {"agents": _with_agent(row, agent)},
            before="before_task_start",
            after="after_task_start",
            argument=agent,
        )
        return await self.move(ref, transition, guard)

    async def complete(
        self, ref: TaskRef, result: Any, guard: LockInfo | None = None
    ) -> TaskRecord:
        """Complete a running task with its result. Raises NotFound, Conflict."""
        stored = check_result(result)
        of_hooks = TaskResult(**check_result(stored))  # a copy, which no hook can change
        transition = Transition(
            TaskMove.COMPLETE,
            "task_completed",
            data=lambda _: {"result": stored},
            changes=lambda _: {"result": stored},
            before="before_task_complete",
            after="after_task_complete",
            argument=of_hooks,
        )
        return await self.move(ref, transition, guard)

    async def fail(self, ref: TaskRef, error: str, guard: LockInfo | None = None) -> TaskRecord:
        """Fail a running task; the error is kept in its metadata. Raises NotFound, Conflict."""
        text = check_error(error)
        transition = Transition(
            TaskMove.FAIL,
            "task_failed",
            level="error",
            data=lambda _: {"error": text},
            changes=lambda row: {"metadata": {**row.metadata, "error": text}},
            before="before_task_fail",
            after="after_task_fail",
            argument=error,
        )
        return await self.move(ref, transition, guard)

    async def cancel(self, ref: TaskRef, guard: LockInfo | None = None) -> TaskRecord:
        """Cancel a pending or running task. Raises NotFound, Conflict."""
        transition = Transition(
            TaskMove.CANCEL,
            "task_cancelled",
            level="warn",
            data=lambda row: {"fromStatus": str(row.status)},
        )
        return await self.move(ref, transition, guard)

    async def move(
        self, ref: TaskRef, transition: Transition, guard: LockInfo | None = None
    ) -> TaskRecord:
        """Make a transition. Raises NotFound, Conflict; then nothing was changed."""
        entry = await get_task(self._store, ref)
        moved(entry.record.status, transition.move)
        if transition.before is not None:
            await self._hooks.run(transition.before, ref.task_id, transition.argument)
        stream = entry.stream
        while True:
            after = await self._commit_move(entry, transition, guard)
            if after is not None:
                break
            entry = await get_task(self._store, ref)
            if entry.stream != stream:  # deleted, and created again
                raise task_not_found(ref.task_id)
        if transition.after is not None:
            await self._hooks.run(transition.after, ref.task_id, transition.argument)
        return after.record

    async def _commit_move(
        self, entry: TaskEntry, transition: Transition, guard: LockInfo | None
    ) -> TaskEntry | None:
        """Compare and set; None if another process changed the row meanwhile."""
        status = moved(entry.record.status, transition.move)
        now = self._store.now()
        changes = transition.changes(entry.record)
        after = entry.changed(now, status=status, is_blank=False, **changes)
        fact = new_fact(
            transition.fact, now, transition.level, transition.data(entry.record), status=status
        )
        return await self.commit(entry, after, [fact], guard)

    async def commit(
        self,
        entry: TaskEntry,
        after: TaskEntry,
        facts: Sequence[tuple[FactType, TaskFact]],
        guard: LockInfo | None = None,
    ) -> TaskEntry | None:
        """Replace a row, with its saved state; None if another process was first."""
        state = await self._moved_state(entry, after)
        commit = TaskCommit(
            entry.stream,
            entry.record.tenant,
            facts,
            after,
            state,
            guard=guard,
            home=entry.record,
        )
        try:
            await self._writer.commit(commit)
        except VersionMoved:
            return None
        except (Gone, NoStream):
            raise task_not_found(entry.record.id) from None
        if after.record.status.is_final:
            self._on_end(entry.stream)
        return after

    async def _moved_state(
        self, entry: TaskEntry, after: TaskEntry
    ) -> tuple[TaskState, int] | None:
        """Return the saved state with the new status; None if no caller has saved one."""
        if entry.record.status is after.record.status:
            return None
        key = record.task_key(entry.record.tenant, entry.record.id)
        saved = await self._store.get(record.STATE, key)
        if saved is None:
            return None
        state = state_file.parse_state(saved.data)
        moved_state = TaskState(
            task_id=state.task_id,
            status=str(after.record.status),
            data=state.data,
            last_updated=iso(after.record.updated_at),
        )
        return moved_state, saved.version + 1

    # --- agents -------------------------------------------------------------------------------

    async def attach(
        self, ref: TaskRef, agent_id: str, guard: LockInfo | None = None
    ) -> TaskRecord:
        """Attach an agent: the first one starts a pending task. Raises NotFound, Conflict."""
        agent = check_id(agent_id, "agent id")
        while True:
            entry = await get_task(self._store, ref)
            row = entry.record
            if row.status.is_final:
                raise Conflict(
                    f"Cannot attach agent to task with status: {row.status}",
                    code="TASK_STATUS_CONFLICT",
                    hint="create another task: this one has ended",
                    details={"status": str(row.status)},
                )
            if row.status is Status.PENDING:
                try:
                    return await self.start(ref, agent, guard)
                except Conflict as error:
                    if error.code != "TASK_STATUS_CONFLICT":
                        raise
                    continue  # another agent has started it
            if agent in row.agents:
                return row
            after = entry.changed(self._store.now(), agents=_with_agent(row, agent))
            fact = new_fact("agent_attached", self._store.now(), data={"agentId": agent})
            if await self.commit(entry, after, [fact], guard) is not None:
                return after.record

    async def detach(
        self, ref: TaskRef, agent_id: str, guard: LockInfo | None = None
    ) -> tuple[TaskRecord, bool]:
        """Detach an agent; return the task, and whether it was attached. Raises NotFound."""
        agent = check_id(agent_id, "agent id")
        while True:
            entry = await get_task(self._store, ref)
            if agent not in entry.record.agents:
                return entry.record, False
            left = tuple(name for name in entry.record.agents if name != agent)
            after = entry.changed(self._store.now(), agents=left)
            fact = new_fact("agent_detached", self._store.now(), data={"agentId": agent})
            if await self.commit(entry, after, [fact], guard) is not None:
                return after.record, True


def _with_agent(row: TaskRecord, agent: str) -> tuple[str, ...]:
    return row.agents if agent in row.agents else (*row.agents, agent)


def check_error(error: Any) -> str:
    """Return the text of a task's failure. Raises Refused."""
    if not isinstance(error, str):
        raise invalid("the error of a task must be text")
    return check_storable(error, "the error of a task")
