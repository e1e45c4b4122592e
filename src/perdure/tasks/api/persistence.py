"""Layers of a task: state, logs, decisions and checkpoints."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from perdure.errors import Corrupt, Refused, StoreError
from perdure.tasks.api.access import open_tasks, task_ref
from perdure.tasks.checkpoints.transfer import file_path, open_file
from perdure.tasks.first_use import TaskHost
from perdure.tasks.locks.values import LockInfo
from perdure.tasks.model.facts import AgentDecision, LogEntry
from perdure.tasks.model.state_file import TaskState
from perdure.tasks.service import Tasks
from perdure.tasks.values import LogOptions, RestoredTask, TaskCheckpoint, with_code


class MultiLayerPersistence:
    """State, logs, decisions and checkpoints of tasks, in the store and as files.

    A write to a task that does not exist makes its layers, without a row. With `guard`, a lock
    that this process has acquired, a write is refused once another holder has the lock.
    """

    def __init__(self, rt: TaskHost) -> None:
        self._rt = rt

    @property
    def _tasks(self) -> Tasks:
        return open_tasks(self._rt)

    # --- layer 1: state.json ------------------------------------------------------------------

    async def save_state(
        self,
        task_id: str,
        state: TaskState | Mapping[str, Any],
        *,
        guard: LockInfo | None = None,
    ) -> None:
        """Save the state of a task, with a checksum. Raises OpenCodeError STATE_SAVE_FAILED.

        The state is then in the store. If `state.json` cannot be written after that, the log of the
        process says so, and the next change or start writes it.
        """
        with _store_errors("STATE_SAVE_FAILED"):
            await self._tasks.layers.save_state(task_ref(self._rt, task_id), state, guard)

    async def load_state(self, task_id: str) -> TaskState | None:
        """Return the state of a task; None if it has none.

        Raises OpenCodeError STATE_VALIDATION_FAILED if it was changed, STATE_LOAD_FAILED.
        """
        with _store_errors("STATE_LOAD_FAILED"):
            return await self._tasks.layers.load_state(task_ref(self._rt, task_id))

    # --- layer 2: logs.jsonl ------------------------------------------------------------------

    async def append_log(
        self,
        task_id: str,
        entry: LogEntry | Mapping[str, Any],
        *,
        guard: LockInfo | None = None,
    ) -> None:
        """Append one entry to the log."""
        await self._tasks.layers.append_logs(task_ref(self._rt, task_id), [entry], guard)

    async def batch_append_logs(
        self,
        task_id: str,
        entries: Sequence[LogEntry | Mapping[str, Any]],
        *,
        guard: LockInfo | None = None,
    ) -> None:
        """Append entries in one commit, in their order, all or none."""
        await self._tasks.layers.append_logs(task_ref(self._rt, task_id), entries, guard)

    async def load_logs(
        self, task_id: str, options: LogOptions | Mapping[str, Any] | None = None
    ) -> list[LogEntry]:
        """Return log entries, oldest first: filters first, then offset and limit."""
        return await self._tasks.layers.logs(task_ref(self._rt, task_id), options)

    # --- layer 3: decisions.md ----------------------------------------------------------------

    async def append_decision(
        self,
        task_id: str,
        decision: AgentDecision | Mapping[str, Any],
        *,
        guard: LockInfo | None = None,
    ) -> None:
        """Append a decision of an agent."""
        await self._tasks.layers.append_decision(task_ref(self._rt, task_id), decision, guard)

    async def load_decisions(self, task_id: str) -> list[AgentDecision]:
        """Return all decisions, oldest first."""
        return await self._tasks.layers.decisions(task_ref(self._rt, task_id))

    # --- layer 4: checkpoints/ ----------------------------------------------------------------

    async def create_checkpoint(self, task_id: str, description: str | None = None) -> str:
        """Take a checkpoint of state, logs, decisions and workspace; returns its id."""
        ref = task_ref(self._rt, task_id)
        return (await self._tasks.checkpoints.create(ref, description)).id

    async def restore_checkpoint(
        self, task_id: str, checkpoint_id: str, *, paths: Sequence[str] | None = None
    ) -> RestoredTask:
        """Put state and workspace back; with `paths`, only these files and folders.

        The present state is taken as a checkpoint first; a workspace that cannot be saved is moved
        aside. Returns where it is. The status and the log stay.
        """
        ref = task_ref(self._rt, task_id)
        return await self._tasks.restores.restore(ref, checkpoint_id, paths)

    async def list_checkpoints(self, task_id: str) -> list[TaskCheckpoint]:
        """Return the checkpoints of a task, newest first; a damaged one has a `problem`."""
        return await self._tasks.checkpoints.all(task_ref(self._rt, task_id))

    async def verify_checkpoint(self, task_id: str, checkpoint_id: str) -> list[str]:
        """Return what is wrong with a checkpoint; nothing if it can be restored."""
        return await self._tasks.checkpoints.verify(task_ref(self._rt, task_id), checkpoint_id)

    async def diff_checkpoints(
        self, task_id: str, checkpoint_id: str, other_id: str | None = None
    ) -> dict[str, list[str]]:
        """Return the files `added`, `removed` and `changed` since a checkpoint.

        They are compared with another checkpoint, or with the present workspace.
        """
        ref = task_ref(self._rt, task_id)
        changes = await self._tasks.checkpoints.diff(ref, checkpoint_id, other_id)
        return {"added": changes.added, "removed": changes.removed, "changed": changes.changed}

    async def delete_checkpoint(self, task_id: str, checkpoint_id: str) -> None:
        """Delete a checkpoint, and the objects that no other checkpoint needs."""
        await self._tasks.checkpoints.delete(task_ref(self._rt, task_id), checkpoint_id)

    async def export_checkpoint(
        self, task_id: str, checkpoint_id: str, path: str | os.PathLike[str]
    ) -> None:
        """Write a checkpoint into a new file, which `import_checkpoint` reads."""
        ref = task_ref(self._rt, task_id)
        await self._tasks.transfer.export(ref, checkpoint_id, file_path(path))

    async def import_checkpoint(self, task_id: str, path: str | os.PathLike[str]) -> str:
        """Add a checkpoint that was exported; returns its id. The file is not trusted."""
        with open_file(file_path(path)) as file:
            ref = task_ref(self._rt, task_id)
            return (await self._tasks.transfer.import_file(ref, file)).id

    # --- all layers ---------------------------------------------------------------------------

    async def cleanup(self, task_id: str) -> None:
        """Remove all layers of a task; its row and its workspace stay. Unknown task: nothing."""
        await self._tasks.cleanup(task_ref(self._rt, task_id))


@contextmanager
def _store_errors(code: str) -> Iterator[None]:
    """Raise errors of the store and of files under a code of the seed."""
    try:
        yield
    except Corrupt as error:
        raise _validation_failed(error) from error
    except StoreError as error:
        raise with_code(error, code) from error
    except Refused as error:
        if error.code not in ("FOLDER_NOT_WRITABLE", "INVALID_REQUEST"):  # such as a bad id
            raise
        raise with_code(error, code) from error


def _validation_failed(error: Corrupt) -> Corrupt:
    if error.code == "STATE_VALIDATION_FAILED":
        return error
    return Corrupt(error.message, code="STATE_VALIDATION_FAILED", hint=error.hint)
