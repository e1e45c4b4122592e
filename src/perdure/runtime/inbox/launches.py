"""Launches of background agents: one commit makes the child, its task, and the parent's event."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core.log import events
from perdure.core.session import child_tasks
from perdure.core.session import naming as index
from perdure.core.session.budgets import BudgetState
from perdure.core.session.child_tasks import TASK, ChildTask
from perdure.core.session.naming import SessionRecord, session_not_found
from perdure.errors import Conflict, PerdureError, Refused
from perdure.ids import hashed_id, new_id, secret_id
from perdure.runtime.inbox.budgets import count_child
from perdure.runtime.inbox.commits import ChildEntry, entry_after, task_puts
from perdure.runtime.inbox.sessions import SessionInbox, message_title
from perdure.runtime.records.cache import CachedSession, SessionCache
from perdure.runtime.records.entries import SessionEntry, SessionRef
from perdure.runtime.records.log import Log, as_record
from perdure.store.base import (
    Check,
    Gone,
    HeadMoved,
    NoStream,
    Put,
    Store,
    VersionMoved,
    Write,
)


class Launch(Struct, frozen=True, kw_only=True):
    """A request to launch a background agent."""

    agent: str
    queue: str
    content: events.Content
    tools: tuple[str, ...] | None = None  # that it may use
    max_depth: int = 3  # of the tree; counts for a task without a parent
    description: str = ""
    key: str | None = None  # what makes a launch the same launch, within its parent
    run: str | None = None  # of the parent, if a call of it launches: refused after its end
    bounds: tuple[events.Bound, ...] = ()  # budgets that bound its first run
    by: str | None = None
    metadata: Mapping[str, Any] | None = None


class Launches:
    """Commits that launch background agents, for callers and for calls of a parent."""

    def __init__(self, store: Store, sessions: SessionInbox, cache: SessionCache) -> None:
        self._store = store
        self._sessions = sessions
        self._cache = cache

    async def launch(
        self, tenant: str, parent: SessionEntry | None, request: Launch
    ) -> tuple[ChildTask, bool]:
        """Launch a background agent in one commit; return its task, and whether it is new.

        The same key again returns the task that exists. Raises Conflict, NotFound.
        """
        task = _new_task(tenant, parent, request, self._store.now())
        while True:
            if parent is not None and request.run is not None:
                parent = await self._current_parent(parent, request.run)
            puts, budget = await count_child(self._store, request.bounds, request.run)
            try:
                if budget is not None:
                    return await self._refuse(task, request, budget, puts), False
                return await self._launch(task, parent, request, puts), True
            except (VersionMoved, HeadMoved) as error:
                entry = await self._store.get(TASK, task.key)
                if entry is not None:
                    return _checked_same(ChildEntry.decode(entry).task, task, request), False
                if isinstance(error, HeadMoved) or error.entry is None:
                    raise
            except (Gone, NoStream) as error:
                raise _erased_error(task, parent, request, error.stream) from error

    async def _refuse(
        self, task: ChildTask, request: Launch, budget: BudgetState, puts: Sequence[Put]
    ) -> ChildTask:
        """Record that the budget allows no launch; return the task if it was launched before.

        Raises Refused.
        """
        entry = await self._store.get(TASK, task.key)
        if entry is not None:
            return _checked_same(ChildEntry.decode(entry).task, task, request)
        if puts:
            await self._store.commit([Write(put.stream) for put in puts], puts)
        raise Refused(
            f"not launched: the budget of the run allows {budget.limits['children']:g} background "
            "agents, and as many were launched",
            code="BUDGET_REACHED",
            hint="launch it again if it is still needed",
        )

    async def _current_parent(self, parent: SessionEntry, run: str) -> SessionEntry:
        """Return the parent's entry as it is now. Raises Conflict if the run has ended."""
        names = SessionRef(parent.record.tenant, parent.record.id)
        current = await self._sessions.session_entry(names)
        if current.record.is_over or current.record.task_id != run:
            raise Conflict(
                "the run that launches the task has ended",
                code="RUN_ENDED",
                hint="send the session a message first",
            )
        return current

    async def _launch(
        self,
        task: ChildTask,
        parent: SessionEntry | None,
        request: Launch,
        budget_puts: Sequence[Put],
    ) -> ChildTask:
        now, stream = self._store.now(), task.stream if parent is None else parent.stream
        record = _child_record(task, parent, request, now)
        facts = _opening_events(task, record, request)
        kind = index.stream_kind(record.agent, record.queue)
        records = [as_record(fact, now) for fact in facts]
        writes = [Write(task.stream, records, create=kind, head=0, wake=now)]
        fact, checks = _delegation(task), list[Check]()
        if parent is not None:
            writes.append(Write(stream, [as_record(fact, now)]))
            if request.run is not None:
                key, version = parent.index_entry.key, parent.index_entry.version
                checks.append(Check("session", key, version, stream))
        named = (stream, task.stream)
        others = dict.fromkeys(put.stream for put in budget_puts if put.stream not in named)
        session, entry_puts = SessionEntry.new(record, task.stream), task_puts(task, None, stream)
        heads = await self._store.commit(
            [*writes, *map(Write, others)], [session.as_put, *entry_puts, *budget_puts], checks
        )
        log = Log(self._store, task.stream)
        log.append(facts, records)
        self._cache.add(CachedSession(log, session))
        self._cache.add_task(entry_after(entry_puts[0]))
        for write in writes[1:]:
            self._cache.extend(write, [fact], heads)
        self._cache.notify(task.stream, heads[task.stream])
        return task


def _new_task(tenant: str, parent: SessionEntry | None, request: Launch, now: int) -> ChildTask:
    scope = tenant if parent is None else parent.stream
    seed = None if request.key is None else f"{scope}|{request.key}"
    task_id = secret_id("bg") if seed is None else hashed_id("bg", seed)
    session_id = child_tasks.session_of(task_id)
    above = () if parent is None else (*parent.record.ancestry, parent.record.id)
    return ChildTask(
        id=task_id,
        session_id=session_id,
        stream=child_tasks.task_stream(tenant, task_id),
        tenant=tenant,
        agent=request.agent,
        description=request.description or message_title(request.content),
        parent=None if parent is None else parent.record.id,
        ancestry=above,
        run=new_id("task"),
        created_at=now,
        updated_at=now,
        digest="" if request.key is None else _digest(request),
    )


def _digest(request: Launch) -> str:
    data = msgspec.json.encode([request.agent, request.content], order="deterministic")
    return hashlib.sha256(data).hexdigest()[:32]


def _checked_same(existing: ChildTask, task: ChildTask, request: Launch) -> ChildTask:
    if existing.digest != task.digest:
        raise Conflict(
            f"another task was launched under the key {request.key!r}",
            code="KEY_REUSED",
            hint="use a new key for a new task",
        )
    return existing


def _erased_error(
    task: ChildTask, parent: SessionEntry | None, request: Launch, stream: str
) -> PerdureError:
    """Return the error of a launch into a stream that was erased: the parent's, or its own."""
    if parent is not None and stream != task.stream:
        return session_not_found(parent.record.id)
    return Conflict(
        f"the task that was launched under the key {request.key!r} was deleted",
        code="KEY_REUSED",
        hint="use a new key for a new task",
    )


def _delegation(task: ChildTask) -> events.Delegation:
    return events.Delegation(
        task_id=task.id,
        session_id=task.session_id,
        agent=task.agent,
        run=task.run,
        description=task.description,
    )


def _child_record(
    task: ChildTask, parent: SessionEntry | None, request: Launch, now: int
) -> SessionRecord:
    inherited = {} if parent is None else parent.record.metadata
    return SessionRecord(
        id=task.session_id,
        tenant=task.tenant,
        agent=request.agent,
        queue=request.queue,
        task_id=task.run,
        created_at=now,
        updated_at=now,
        metadata={**inherited, **(request.metadata or {})},
        title=message_title(request.content),
        parent=task.parent,
        background=task.id,
        ancestry=task.ancestry,
    )


def _opening_events(
    task: ChildTask, record: SessionRecord, request: Launch
) -> Sequence[events.Event]:
    launched = events.Launched(
        task_id=task.id,
        run=task.run,
        parent=task.parent,
        ancestry=task.ancestry,
        tools=request.tools,
        max_depth=request.max_depth,
        description=task.description,
    )
    metadata = [events.Metadata(changes=record.metadata)] if record.metadata else []
    message = events.User(
        role="user",
        content=request.content,
        task_id=task.run,
        key=request.key,
        by=request.by,
        bounds=request.bounds,
    )
    return [launched, *metadata, message]
