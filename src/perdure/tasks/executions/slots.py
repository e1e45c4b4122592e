"""Slots of tasks: taken at the start of a command, freed at its end, each in one commit.

The commit that takes a slot records the start and claims the task's stream. The lease fences the
end: once a worker has settled a command whose process seemed dead, that process cannot write any
more, and its command is stopped.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from perdure.store.base import (
    Check,
    Fenced,
    Gone,
    HeadMoved,
    Heads,
    Lease,
    Lost,
    NoStream,
    Put,
    Release,
    Store,
    VersionMoved,
    Write,
)
from perdure.tasks.entries import TaskEntry
from perdure.tasks.model import executions, record
from perdure.tasks.model.executions import (
    EXECUTION,
    SLOT,
    CommandSlot,
    ExecutionFact,
    ExecutionRecord,
    StopReason,
)
from perdure.tasks.model.facts import FactType, LogLevel, TaskFact
from perdure.tasks.model.record import STREAM_KIND, TaskRecord
from perdure.tasks.writer import LeaseStep, TaskCommit, TaskWriter, new_fact

Commit = Callable[[str | None], Awaitable[list[Lease]]]


class StreamLeases(Protocol):
    """Leases of this process, which its heartbeat renews; implemented by `Drives`."""

    async def claim(self, kind: str, limit: int, only: str | None = None) -> list[Lease]:
        """Claim due streams of a kind."""
        ...

    async def claim_by(self, commit: Commit) -> list[Lease]:
        """Let a commit claim its stream; the commit counts without a lease too."""
        ...

    async def release(self, lease: Lease, due: int | None) -> None:
        """Release a lease, now or when the store is available."""
        ...

    def when_lost(self, on_lost: Callable[[str], None]) -> None:
        """Call a function with the name of each holder whose leases are lost."""
        ...


@dataclass(frozen=True, slots=True)
class SlotEntry:
    """Slot of a task, with the version of its entry; 0 if there has been no command yet."""

    slot: CommandSlot
    version: int

    def put(self, stream: str, slot: CommandSlot) -> Put:
        """Return the put that replaces it."""
        data = executions.encode(slot)
        return Put(SLOT, stream, self.version, stream, slot.state, None, data)


@dataclass(frozen=True, slots=True)
class SlotClaim:
    """Slot that a command has taken: its lease, or None if another process has the stream."""

    lease: Lease | None
    version: int
    head: int


class Slots:
    """Slots of the tasks of a store."""

    def __init__(self, store: Store, writer: TaskWriter, leases: StreamLeases) -> None:
        self._store = store
        self._writer = writer
        self._leases = leases

    async def get(self, stream: str) -> SlotEntry:
        """Return the slot of a task. Raises Corrupt."""
        entry = await self._store.get(SLOT, stream)
        if entry is None:
            return SlotEntry(CommandSlot(), 0)
        return SlotEntry(executions.decode_slot(entry.data), entry.version)

    async def take(self, task: TaskEntry, slot: SlotEntry, execution: ExecutionRecord) -> SlotClaim:
        """Record the start of a command and claim the stream, in one commit.

        Raises VersionMoved if another command was first, or the task was changed meanwhile.
        """
        replies: list[Heads] = []

        async def commit(holder: str | None) -> list[Lease]:
            reply = await self._writer.commit_heads(_start_commit(task, slot, execution, holder))
            replies.append(reply)
            return list(reply.leases.values())

        leases = await self._leases.claim_by(commit)
        if not leases:  # our holder was lost, or a worker looks for something to settle
            leases = await self._leases.claim(STREAM_KIND, 1, task.stream)
        head = replies[0][task.stream]
        return SlotClaim(leases[0] if leases else None, slot.version + 1, head)

    async def free(
        self, task: TaskRecord, stream: str, claim: SlotClaim, fact: ExecutionFact
    ) -> bool:
        """Record the end of a command under its lease, and release it.

        Return False if another process has recorded one, or the task was deleted. Without a lease
        nothing has been run, and the slot itself is the condition.
        """
        slot, head = SlotEntry(CommandSlot(fact.record.id), claim.version), claim.head
        while slot.slot.execution == fact.record.id:
            commit = TaskCommit(
                stream,
                task.tenant,
                [_end_fact(fact, self._store.now())],
                puts=[slot.put(stream, CommandSlot()), _execution_put(stream, fact.record, 1)],
                home=task,
                lease=_release(claim.lease, head),
            )
            try:
                await self._writer.commit(commit)
            except HeadMoved as error:
                head = error.head  # a log line was appended meanwhile
            except VersionMoved:
                slot = await self.get(stream)  # a caller has requested a stop meanwhile
            except (Fenced, Lost, Gone, NoStream):
                return False
            else:
                return True
        return False

    async def request_stop(self, stream: str, execution_id: str, reason: StopReason) -> bool:
        """Record that a command must stop; False if it does not run any more."""
        while True:
            slot = await self.get(stream)
            if slot.slot.execution != execution_id:
                return False
            if slot.slot.stop is not None:
                return True
            put = slot.put(stream, CommandSlot(execution_id, reason))
            try:
                await self._store.commit([Write(stream)], [put])
            except VersionMoved:
                continue
            except (Gone, NoStream):
                return False
            return True


def _start_commit(
    task: TaskEntry, slot: SlotEntry, execution: ExecutionRecord, holder: str | None
) -> TaskCommit:
    row, stream = task.record, task.stream
    data = {
        "executionId": execution.id,
        "command": execution.command,
        "sandbox": execution.sandbox,
    }
    fact = new_fact(
        "exec_started", execution.started_at, data=data, execution=ExecutionFact(execution)
    )
    is_same_sandbox = row.sandbox == execution.sandbox
    key = record.task_key(row.tenant, row.id)
    changed = task.changed(execution.started_at, sandbox=execution.sandbox)
    return TaskCommit(
        stream,
        row.tenant,
        [fact],
        row=None if is_same_sandbox else changed,
        puts=[
            slot.put(stream, CommandSlot(execution.id)),
            _execution_put(stream, execution, 0),
        ],
        home=row,
        checks=[Check(record.ROW, key, task.version, stream)] if is_same_sandbox else (),
        lease=LeaseStep(claim=holder),
    )


def _release(lease: Lease | None, head: int) -> LeaseStep | None:
    return None if lease is None else LeaseStep(fence=lease, head=head, release=Release(None))


def _end_fact(fact: ExecutionFact, now: int) -> tuple[FactType, TaskFact]:
    end = fact.record
    data = {"executionId": end.id, "reason": end.reason, "exitCode": end.exit_code}
    level: LogLevel = "info" if end.reason == "exited" else "warn"
    return new_fact("exec_finished", now, level, data, execution=fact)


def _execution_put(stream: str, execution: ExecutionRecord, expect: int) -> Put:
    key = executions.execution_key(stream, execution.id)
    state = "running" if execution.is_running else "ended"
    return Put(EXECUTION, key, expect, stream, state, None, executions.encode(execution))
