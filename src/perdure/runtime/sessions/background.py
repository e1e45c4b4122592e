"""Background tasks: the verbs that HTTP, the command line and Python share, and their handle."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import anyio

from perdure.core.log import events
from perdure.core.pending.policy import accepted_acts
from perdure.core.session.budgets import run_bounds
from perdure.core.session.child_tasks import (
    STILL_RUNNING,
    UNKNOWN,
    ChildTask,
    mail_answer,
    task_answer,
    task_not_found,
)
from perdure.core.session.children import ACTIVE, BACKGROUND_AUTHOR, Reservation, mail_id
from perdure.core.session.follow_ups import NO_RULES, FollowUpRules
from perdure.errors import Corrupt, NotFound, PerdureError, StoreError
from perdure.runtime.agents.agents import Agents
from perdure.runtime.agents.delegation import check_launch, parameter_missing
from perdure.runtime.diagnosis.tasks import (
    Acts,
    task_findings,
    waiting_answer,
    waiting_fields,
)
from perdure.runtime.engine.children import (
    check_depth,
    child_tools,
    max_tree_depth,
    read_answer,
)
from perdure.runtime.inbox.children import ChildInbox
from perdure.runtime.inbox.commits import ChildEntry
from perdure.runtime.inbox.launches import Launch
from perdure.runtime.inbox.sessions import NewMessage
from perdure.runtime.inbox.tree_calls import TreeCalls
from perdure.runtime.queues import held_back_problem, is_suspect
from perdure.runtime.records.content import check_text
from perdure.runtime.records.entries import SessionEntry, SessionRef
from perdure.runtime.records.log import read_log
from perdure.runtime.resources import Resources
from perdure.runtime.sessions.runs import Runs
from perdure.store.base import HeadMoved, StoreRefusal
from perdure.views.tasks import BackgroundTask

RESERVE_MARGIN_MS: Final = 5_000  # a waiting caller has this long to take an outcome


Gone = Callable[[], Awaitable[None]]  # returns when a caller does not wait any more


async def never() -> None:
    """Wait for ever: a caller that waits until its time is over."""
    await asyncio.Event().wait()


class BackgroundTasks:
    """Background agents: launched, read, resumed, cancelled, cleared and deleted."""

    def __init__(
        self,
        resources: Resources,
        agents: Agents,
        runs: Runs,
        process_name: Callable[[], Awaitable[str]],
    ) -> None:
        self.resources = resources
        self._process_name = process_name
        self._inbox = resources.child_inbox
        self._sessions = resources.session_inbox
        self._agents = agents
        self._runs = runs

    # --- finding ------------------------------------------------------------------------------

    async def get(self, tenant: str | None, task_id: str) -> ChildTask:
        """Return a task that was not cleared. Raises NotFound."""
        return (await self._find(tenant, task_id)).task

    async def _find(self, tenant: str | None, task_id: str) -> ChildEntry:
        if tenant is not None:
            return await self._inbox.find(tenant, task_id)
        for name in sorted({"", *await self._inbox.tenants()}):
            try:
                return await self._inbox.find(name, task_id)
            except NotFound as error:
                if error.details["reason"] != UNKNOWN:
                    raise
        raise task_not_found(task_id)

    async def tasks(
        self, tenant: str | None, *, parent: str | None = None, status: str | None = None
    ) -> AsyncIterator[ChildTask]:
        """Yield the tasks that were not cleared."""
        if parent is not None:
            entry = await self._sessions.session_entry(SessionRef(tenant or "", parent))
            lists = [self._inbox.tasks_of(entry.stream)]
        else:
            # One that a queued message starts again is found among the resumed ones.
            is_ended = status is not None and status not in ACTIVE
            states = [status, "resumed"] if is_ended else [status]
            lists = [self._inbox.tasks(state) for state in states]
        for entries in lists:
            async for item in entries:
                task = item.task
                is_match = tenant in (None, task.tenant) and status in (None, task.status)
                if is_match and not task.is_cleared:
                    yield task

    async def session(self, task: ChildTask) -> SessionEntry:
        """Return the entry of a task's session. Raises NotFound."""
        return await self._sessions.session_entry(SessionRef(task.tenant, task.session_id))

    async def open_calls(self, task: ChildTask) -> TreeCalls:
        """Return the open calls of a task and of those below it, which may outlive its run."""
        return await self.resources.open_trees.of_task(task, self._agents.may_launch)

    async def waiting(self, task: ChildTask) -> dict[str, Any]:
        """Return `{waitingFor, message}`: what a task waits for, who settles it, and where."""
        calls = (await self.open_calls(task)).from_outside
        return waiting_answer(calls, self.resources.address.url)

    async def with_reasons(
        self, tasks: Sequence[ChildTask], acts: Acts = accepted_acts
    ) -> list[tuple[ChildTask, dict[str, Any]]]:
        """Return each task with `{findings}`, and `waitingFor` if it waits for people.

        The steps of the findings are those that a caller may take.
        """
        rows = await asyncio.gather(*[self._reasons(task, acts) for task in tasks])
        return list(zip(tasks, rows, strict=True))

    async def _reasons(self, task: ChildTask, acts: Acts) -> dict[str, Any]:
        calls = (await self.open_calls(task)).for_people
        problem = await self._held_back(task) if task.is_active and not calls else None
        findings = task_findings(task.id, calls, problem, self.resources.store.now(), acts)
        return {**waiting_fields(calls), "findings": [item.to_json() for item in findings]}

    async def _held_back(self, task: ChildTask) -> PerdureError | None:
        """Return the problem of a task whose session workers do not drive yet."""
        store = self.resources.store
        try:
            position = await store.read(task.stream, limit=0)
            if not is_suspect(position):
                return None
            queue = (await self.session(task)).record.queue
            last = await store.read(task.stream, position.head - 1, 1)
        except (Corrupt, NotFound, StoreRefusal):  # it is damaged, or was deleted meanwhile
            return None
        since = last.records[0].at if last.records else task.updated_at
        return await held_back_problem(store, position, queue, since)

    async def answer(self, task: ChildTask) -> dict[str, Any]:
        """Return the answer about the last run of a task: its output, or why it has none."""
        return await read_answer(self.resources, task)

    # --- launching and resuming ---------------------------------------------------------------

    async def launch(  # noqa: PLR0913 - keyword options of a launch
        self,
        tenant: str,
        agent: str,
        content: events.Content,
        *,
        parent: str | None = None,
        description: str | None = None,
        key: str | None = None,
        by: str | None = None,
    ) -> tuple[ChildTask, bool]:
        """Launch a background agent; return its task, and whether it is new.

        Raises NotFound, Refused TOO_DEEP, Conflict KEY_REUSED.
        """
        check_launch({"agent": agent, "prompt": content})
        _check_content("Prompt", content)
        if description is not None:
            check_text("description", description)
        ready = self._agents.get(agent)
        depth, max_depth, above = 0, ready.agent.max_depth, None
        bounds: tuple[events.Bound, ...] = ()
        if parent is not None:
            above = await self._sessions.session_entry(SessionRef(tenant, parent))
            depth = len(above.record.ancestry) + 1
            max_depth, bounds = await self._limits(above, max_depth)
            check_depth(depth, max_depth)
        request = Launch(
            agent=ready.name,
            queue=ready.agent.queue,
            content=content,
            tools=child_tools(ready, may_launch=depth < max_depth),
            max_depth=max_depth,
            description=description or "",
            key=key,
            bounds=bounds,
            by=by,
        )
        return await self._inbox.launch(tenant, above, request)

    async def _limits(
        self, parent: SessionEntry, max_depth: int
    ) -> tuple[int, tuple[events.Bound, ...]]:
        """Return how deep the tree of a parent may become, and the budgets of its run.

        The log is read only if it has them: of a child, or of a run with a budget.
        """
        owner = self._agents.find(parent.record.agent)
        limits = {} if owner is None else owner.budget
        if owner is not None and not limits and parent.record.background is None:
            return owner.agent.max_depth, ()
        state = (await read_log(self.resources.store, parent)).state
        if owner is not None:
            max_depth = max_tree_depth(owner, state.launch)
        return max_depth, run_bounds(state.run, parent.stream, limits)

    async def resume(
        self,
        task: ChildTask,
        content: events.Content,
        *,
        key: str | None = None,
        wait_ms: int | None = None,
        by: str | None = None,
        via: str = "python",
    ) -> ChildTask:
        """Send a follow-up to a completed task; `wait_ms` reserves the answer for the caller.

        The agent of its parent, or its own without a parent, may allow more. Raises Conflict,
        NotFound.
        """
        _check_content("message", content)
        item = None if wait_ms is None else await self._reservation(task, wait_ms)
        message = NewMessage(content, key, by=by, via=via, reservation=item)
        child = await self._find(task.tenant, task.id)
        return await self._inbox.resume(child, message, await self._rules(child.task))

    async def _reservation(self, task: ChildTask, wait_ms: int) -> Reservation | None:
        """Return the reservation of an answer for a caller that waits here; its process may die."""
        if task.parent is None:
            return None  # nobody else is notified
        holder = await self._process_name()
        return Reservation(self.resources.store.now() + wait_ms + RESERVE_MARGIN_MS, holder)

    async def _rules(self, task: ChildTask) -> FollowUpRules:
        """Return what is allowed beyond follow-ups to completed tasks, as far as known here."""
        name: str | None = task.agent
        if task.parent is not None:
            parent = await self._sessions.find(SessionRef(task.tenant, task.parent))
            name = None if parent is None else parent.record.agent
        owner = None if name is None else self._agents.find(name)
        return NO_RULES if owner is None else owner.follow_up_rules

    async def wait(
        self, task: ChildTask, wait_ms: int, *, drive: bool = True, gone: Gone = never
    ) -> ChildTask:
        """Wait until the run that answers the last message ends, or for a time; return the task.

        `gone` returns when the caller does not wait any more.
        """
        entry = await self.session(task)

        async def has_ended() -> bool:
            return _has_ended(task, await self.get(task.tenant, task.id))

        async def wait() -> None:
            await self._runs.wait_for(entry, has_ended, drive=drive)

        with suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1_000):
                await _until_gone(wait, gone)
        return await self.get(task.tenant, task.id)

    async def wait_and_take(
        self,
        task: ChildTask,
        wait_ms: int,
        by: str | None = None,
        *,
        drive: bool = True,
        gone: Gone = never,
    ) -> dict[str, Any]:
        """Wait for the outcome that was reserved for this caller, take it, and return the answer.

        If it comes too late, or the caller is gone by then, the parent is notified. It is the
        answer to the caller's own message, even if another caller has resumed the task since.
        """
        is_gone = False

        async def note_gone() -> None:
            nonlocal is_gone
            await gone()
            is_gone = True

        async with self.waiting_caller(task) as caller:
            after = await self.wait(task, wait_ms, drive=drive, gone=note_gone)
            if not _has_ended(task, after) or is_gone:
                return await self.outcome(after)
            mail = await self._inbox.mail(task.tenant, mail_id(task.id, task.answer_number))
            answer = await self.outcome(after) if mail is None else mail_answer(mail[1])
            await caller.take(by)
            return answer

    async def read_and_take(self, task: ChildTask, wait_ms: int) -> dict[str, Any]:
        """Wait for the outcome of a task, take it, and return the answer.

        What another caller has reserved is only read.
        """
        if not task.may_move:
            answer = await self.outcome(task)
            await self._inbox.take(task.tenant, task.mail_id, None)
            return answer
        waiting = await self._reserve(task, wait_ms)
        if waiting is not None:
            return await self.wait_and_take(waiting, wait_ms)
        return await self.outcome(await self.wait(task, wait_ms))

    async def _reserve(self, task: ChildTask, wait_ms: int) -> ChildTask | None:
        item = await self._reservation(task, wait_ms)
        return None if item is None else await self._inbox.reserve(task, item)

    async def reserve_again(self, task: ChildTask, run: str, wait_ms: int) -> ChildTask | None:
        """Reserve the outcome of a run for a caller that waits for it again.

        Returns None if it is only read: another caller waits, or the task was sent more since.
        """
        waiting = await self._reserve(task, wait_ms) if task.may_move else task
        if waiting is None or (waiting.run == run and not waiting.is_queued):
            return waiting
        await self._inbox.end_reservation(waiting)
        return None

    @asynccontextmanager
    async def waiting_caller(self, task: ChildTask) -> AsyncIterator["WaitingCaller"]:
        """Return a context in which a caller waits for an outcome that is reserved for it.

        At its end, the parent is notified of what the caller did not take.
        """
        caller = WaitingCaller(self._inbox, task)
        try:
            yield caller
        except BaseException:  # its task was cancelled, or the store failed
            self._runs.run_beside(caller.leave)
            raise
        await caller.leave()

    async def outcome(self, task: ChildTask) -> dict[str, Any]:
        """Return the answer about a task: its output or error, or that it is still running.

        While a queued message waits, the last output is not the answer to it.
        """
        if task.may_move:
            return task_answer(task, **{"message": STILL_RUNNING, **await self.waiting(task)})
        mail = await self._inbox.mail(task.tenant, task.mail_id)
        return await self.answer(task) if mail is None else mail_answer(mail[1])

    # --- ending -------------------------------------------------------------------------------

    async def cancel(
        self, task: ChildTask, by: str | None = None, reason: str | None = None, via: str = "python"
    ) -> ChildTask:
        """Cancel the run of a task. Raises Conflict if it has ended."""
        return await self._inbox.cancel(await self._find(task.tenant, task.id), by, reason, via)

    async def clear(self, tenant: str, parent: str, by: str | None = None) -> list[ChildTask]:
        """Cancel the active tasks of a session and remove all of them from lists."""
        entry = await self._sessions.session_entry(SessionRef(tenant, parent))
        return await self._inbox.clear(entry.stream, by)

    async def delete(self, task: ChildTask, by: str | None = None, via: str = "python") -> None:
        """Erase the session of a task with everything below it, and the task."""
        with suppress(NotFound):
            await self.erase_tree(SessionRef(task.tenant, task.session_id), by, via)
        await self._inbox.purge(task)

    async def erase_tree(self, ref: SessionRef, by: str | None, via: str = "python") -> str:
        """Erase a session with everything that it launched; return the last state of its run.

        Children go first, each session at the head at which its children were listed: a child
        that is launched meanwhile is not left behind. The task of its commands goes before the
        session, so that a deletion that was interrupted can be repeated. Raises NotFound, and
        Refused TASK_ELSEWHERE if the files of that task are on another machine.
        """
        entry = await self._sessions.session_entry(ref)
        shell = self.resources.shell()
        await shell.check_deletable(ref.tenant, ref.session_id)
        state = await self._sessions.end_for_deletion(ref, by, via)
        while True:
            head = (await self.resources.store.read(entry.stream, limit=0)).head
            has_children = False
            async for item in self._inbox.tasks_of(entry.stream):
                child = SessionRef(item.task.tenant, item.task.session_id)
                if item.task.stream != entry.stream:
                    with suppress(NotFound):  # its parent needs no notification of its end
                        await self.erase_tree(child, BACKGROUND_AUTHOR, via)
                        has_children = True
            if has_children:
                continue  # their ends were written to this session
            await shell.delete_task(ref.tenant, ref.session_id)
            try:
                await self._sessions.erase(ref, head)
            except HeadMoved:
                continue
            # A call that had begun in another process may have made it again before the erasure.
            await shell.delete_task(ref.tenant, ref.session_id)
            return state


class WaitingCaller:
    """A caller for which the outcome of a run is reserved."""

    def __init__(self, inbox: ChildInbox, task: ChildTask) -> None:
        self._inbox = inbox
        self._task = task
        self._is_over = False  # it has taken the outcome, or left it

    async def take(self, by: str | None = None) -> None:
        """Take the outcome of the run that answers the last message, which the caller has read."""
        if self._is_over:
            return
        task = self._task
        await self._inbox.take(task.tenant, mail_id(task.id, task.answer_number), by)
        self._is_over = True

    async def leave(self) -> None:
        """End the reservation of an outcome that was not taken; without a store it just ends."""
        if self._is_over:
            return
        self._is_over = True
        with suppress(StoreError):
            await self._inbox.end_reservation(self._task)


def _check_content(name: str, content: events.Content) -> None:
    """Raise Refused if a prompt or a follow-up is blank."""
    if events.is_blank(content):
        raise parameter_missing(name)


async def _until_gone(wait: Callable[[], Awaitable[None]], gone: Gone) -> None:
    """Await something, unless the caller is gone before. Raises its error."""
    errors: list[Exception] = []

    async def watch(scope: anyio.CancelScope) -> None:
        await gone()
        scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch, group.cancel_scope)
        try:
            await wait()
        except Exception as error:  # noqa: BLE001 - raised below, outside of the task group
            errors.append(error)
        group.cancel_scope.cancel()
    if errors:
        raise errors[0]


def _has_ended(task: ChildTask, current: ChildTask) -> bool:
    """Return whether the run that a task waited for has ended; another may have started since."""
    number = task.answer_number
    if current.number < number and current.is_queued:
        return False
    return not current.is_active or current.number > number


def background_view(task: ChildTask, **more: Any) -> BackgroundTask:
    """Return the view of a background agent, perhaps with what its session says."""
    return BackgroundTask(
        id=task.id,
        name=task.description,
        status=task.status,
        agents=(task.agent,),
        tenant=task.tenant,
        created_at_ms=task.created_at,
        updated_at_ms=task.updated_at,
        agent=task.agent,
        description=task.description,
        session_id=task.session_id,
        parent=task.parent,
        ancestry=task.ancestry,
        resume_count=task.resume_count,
        queued=task.is_queued,
        **more,
    )
