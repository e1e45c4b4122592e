"""Executions that a task has had: found, listed, and read with their output."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from perdure.core.session.naming import check_id
from perdure.errors import NotFound, Refused
from perdure.store.base import Gone, NoStream, Store
from perdure.tasks.model import executions, facts
from perdure.tasks.model.executions import EXECUTION, ExecutionFact, ExecutionRecord

_PAGE: Final = 200


class ExecutionHistory:
    """Executions of the tasks of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(self, stream: str, execution_id: str) -> ExecutionRecord | None:
        """Return an execution without its output; None if there is no such execution."""
        entry = await self._store.get(EXECUTION, executions.execution_key(stream, execution_id))
        if entry is None or entry.stream != stream:
            return None
        return executions.decode_record(entry.data)

    async def get(self, stream: str, execution_id: str) -> ExecutionRecord:
        """Return an execution without its output. Raises NotFound."""
        execution = None
        with suppress(Refused):  # an id that no execution can have
            execution = await self.find(stream, check_id(execution_id, "execution id"))
        if execution is None:
            raise NotFound(
                f"there is no execution {str(execution_id)[:80]!a} in this task",
                code="EXECUTION_NOT_FOUND",
                hint="perdure tasks executions ID",
            )
        return execution

    async def list(
        self, stream: str, limit: int, after: str | None = None
    ) -> tuple[list[ExecutionRecord], str | None]:
        """Return executions, newest first, and the cursor of the next page."""
        page = await self._store.find(EXECUTION, stream=stream, after=after, limit=limit)
        return [executions.decode_record(entry.data) for entry in page.entries], page.next

    async def fact(self, stream: str, execution: ExecutionRecord) -> ExecutionFact:
        """Return an execution that has ended with its output. Raises NotFound."""
        async for fact in self._facts(stream, execution.after):
            if fact.record.id == execution.id and not fact.record.is_running:
                return fact
        return ExecutionFact(execution)  # an imported task may have lost the record

    async def _facts(self, stream: str, after: int) -> AsyncIterator[ExecutionFact]:
        while True:
            try:
                piece = await self._store.read(stream, after=after, limit=_PAGE)
            except (NoStream, Gone):
                return
            for item in piece.records:
                fact = facts.decode(item.data).execution if item.type == "exec_finished" else None
                if fact is not None:
                    yield fact
            if not piece.records or piece.records[-1].seq >= piece.head:
                return
            after = piece.records[-1].seq
