"""Background agents of a driven session: its background tools, its mail, its cancelled children."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from perdure.core.driver import drafts as turns
from perdure.core.driver import effects
from perdure.core.driver.draft_builder import Draft
from perdure.core.log.events import Bound, Launched, raw_json
from perdure.core.session.budgets import run_bounds
from perdure.core.session.calls import Call
from perdure.core.session.child_tasks import (
    STILL_RUNNING,
    ChildMail,
    ChildTask,
    decode_mail,
    deleted_output,
    mail_answer,
    marked_description,
    output_text,
    rebuilt_task,
    task_answer,
)
from perdure.core.session.children import ACTIVE, BACKGROUND_AUTHOR, Child, mail_id
from perdure.core.session.state import State
from perdure.errors import Corrupt, NotFound, Refused
from perdure.ids import new_id
from perdure.runtime.agents.delegation import BACKGROUND_TOOLS, ChildAnswer, ChildWait
from perdure.runtime.agents.ready_agent import ReadyAgent
from perdure.runtime.diagnosis.tasks import waiting_answer, waiting_fields
from perdure.runtime.inbox.children import CANCELLED_REASON
from perdure.runtime.inbox.launches import Launch
from perdure.runtime.inbox.sessions import NewMessage
from perdure.runtime.records.entries import SessionRef
from perdure.runtime.records.log import read_log
from perdure.runtime.resources import Resources

if TYPE_CHECKING:
    from perdure.runtime.engine.writer import LeasedWriter

VIA: Final = "model"


class SessionChildren(Struct, frozen=True):
    """Implements `ChildCalls` for one call of one session."""

    resources: Resources
    agent: ReadyAgent
    tenant: str
    session_id: str
    state: State
    effect_id: str

    @property
    def _ref(self) -> SessionRef:
        return SessionRef(self.tenant, self.session_id)

    @property
    def _run(self) -> str:
        return "" if self.state.run is None else self.state.run.id

    def _bounds(self, stream: str) -> tuple[Bound, ...]:
        """Return the budgets that bound what the run launches."""
        return run_bounds(self.state.run, stream, self.agent.budget)

    async def launch(self, agent: str, prompt: str, description: str | None) -> dict[str, Any]:
        """Launch a background agent; the same call again finds the task that exists."""
        names = [item.name for item in self.agent.sub_agents]
        if agent not in names:
            raise Refused(
                f"agent {agent!r} cannot be launched here; agents: {', '.join(names)}",
                code="AGENT_NOT_ALLOWED",
                hint="list it in sub_agents",
            )
        parent = await self.resources.session_inbox.session_entry(self._ref)
        depth = len(parent.record.ancestry) + 1
        max_depth = max_tree_depth(self.agent, self.state.launch)
        check_depth(depth, max_depth)
        child = self.agent.find(agent)
        request = Launch(
            agent=agent if child is None else child.name,
            queue=self.agent.queue_of(agent),
            content=prompt,
            tools=child_tools(child, may_launch=depth < max_depth),
            max_depth=max_depth,
            description=description or "",
            key=self.effect_id,
            run=self._run,
            bounds=self._bounds(parent.stream),
        )
        task, _ = await self.resources.child_inbox.launch(self.tenant, parent, request)
        return task_answer(task, agent=task.agent, message=LAUNCHED)

    async def output(self, task_id: str) -> ChildAnswer | ChildWait:
        """Return the outcome of a task and take its mail, or say how to wait for it."""
        inbox = self.resources.child_inbox
        task = (await inbox.find_by_prefix(self.tenant, task_id, self.session_id)).task
        if task.is_active:
            tree = await self.resources.open_trees.of_task(task)
            waiting = waiting_answer(tree.from_outside, self.resources.address.url)
            return ChildWait(task.mail_id, 0, task_answer(task), waiting)
        mail = await inbox.mail(self.tenant, task.mail_id)
        if mail is not None:
            return ChildAnswer(mail_answer(mail[1]), (task.mail_id,))
        return ChildAnswer(await read_answer(self.resources, task))

    async def resume(self, task_id: str, message: str) -> ChildWait:
        """Send a follow-up to a completed task, or to another as the agent's settings allow."""
        inbox = self.resources.child_inbox
        entry = await inbox.find_by_prefix(self.tenant, task_id, self.session_id)
        sent = NewMessage(
            message,
            key=self.effect_id,
            by=self.session_id,
            via=VIA,
            bounds=self._bounds(entry.entry.stream),
        )
        task = await inbox.resume(entry, sent, self.agent.follow_up_rules)
        return ChildWait(mail_id(task.id, task.answer_number), 0, task_answer(task))

    async def list(self, status: str | None) -> dict[str, Any]:
        """List the tasks that were not cleared, newest first."""
        parent = await self.resources.session_inbox.session_entry(self._ref)
        tasks = [
            item.task
            async for item in self.resources.child_inbox.tasks_of(parent.stream)
            if not item.task.is_cleared and status in (None, item.task.status)
        ]
        tasks.sort(key=lambda task: (task.created_at, task.id), reverse=True)
        rows = [{**_listed(task), **await self._waiting(task)} for task in tasks]
        return {"tasks": rows, "count": len(tasks)}

    async def _waiting(self, task: ChildTask) -> dict[str, Any]:
        """Return the calls for which an active task waits for approvers, or nothing."""
        if not task.is_active:
            return {}
        tree = await self.resources.open_trees.of_task(task)
        return waiting_fields(tree.for_people)

    async def cancel(self, task_id: str) -> dict[str, Any]:
        """Cancel a running task; its parent is not notified of what it did itself."""
        inbox = self.resources.child_inbox
        entry = await inbox.find_by_prefix(self.tenant, task_id, self.session_id)
        task = await inbox.cancel(entry, BACKGROUND_AUTHOR, CANCELLED_REASON, VIA)
        return task_answer(task)

    async def clear(self) -> dict[str, Any]:
        """Cancel the running tasks and remove all from the list."""
        parent = await self.resources.session_inbox.session_entry(self._ref)
        tasks = await self.resources.child_inbox.clear(parent.stream, self.session_id)
        return {"cleared": len(tasks), "tasks": [task_answer(task) for task in tasks]}


LAUNCHED: Final = "The task was launched. You will be notified when it has completed."


def max_tree_depth(agent: ReadyAgent, launch: Launched | None) -> int:
    """Return how deep a tree may become: as the agent of its root says."""
    return agent.agent.max_depth if launch is None else launch.max_depth


def check_depth(depth: int, max_depth: int) -> None:
    """Raise Refused if a background agent would be too far below its root."""
    if depth > max_depth:
        raise Refused(
            f"background agents may be {max_depth} deep, and this one would be {depth} deep",
            code="TOO_DEEP",
            hint="do the work here, or raise max_depth of the root's agent",
        )


def child_tools(agent: ReadyAgent | None, *, may_launch: bool) -> tuple[str, ...] | None:
    """Return the tools that a child may use for ever; None if they are not known here."""
    if agent is None or agent.problem is not None:
        return None
    return tuple(name for name in agent.tools if may_launch or name not in BACKGROUND_TOOLS)


async def read_answer(resources: Resources, task: ChildTask) -> dict[str, Any]:
    """Return the answer about a task whose outcome was delivered before, from its session.

    That the session was deleted since is not an error of the task, which keeps its status.
    """
    ref = SessionRef(task.tenant, task.session_id)
    try:
        entry = await resources.session_inbox.session_entry(ref)
        run = (await read_log(resources.store, entry)).state.run
    except NotFound:
        return task_answer(task, message=deleted_output(task))
    except Corrupt as error:
        return task_answer(task, error=f"the output cannot be read: {error.message}")
    if run is None or run.end is None:
        return task_answer(task)
    if run.error is not None:
        return task_answer(task, error=f"Task {task.id} failed: {run.error.error}")
    if run.end == "cancelled":
        return task_answer(task, error=f"Task {task.id} was cancelled")
    output = None if run.output is None else msgspec.json.decode(run.output)
    return task_answer(task, output=output_text(output))


def _listed(task: ChildTask) -> Mapping[str, Any]:
    values = {"agent": task.agent, "description": marked_description(task)}
    return task_answer(task, **values, active=task.status in ACTIVE)


# --- effects of a drive ----------------------------------------------------------------------

MailEffect = effects.DeliverMail | effects.SettleChildCalls | effects.StartQueued
ChildEffect = MailEffect | effects.CancelChildren


async def draft_child_effect(drive: "LeasedWriter", effect: MailEffect, now: int) -> Draft | None:
    """Return what is written for an effect; None if the mail was taken since."""
    state = drive.log.state
    match effect:
        case effects.DeliverMail():
            read = [await _mail(drive, mail) for mail in effect.mail]
            mails = [mail for mail in read if mail is not None]
            return turns.deliver_mail(state, mails, new_id("task"), now) if mails else None
        case effects.StartQueued():
            return turns.start_queued(state, new_id("task"), now)
        case effects.SettleChildCalls():
            texts = [(call, await _answer(drive, call)) for call in effect.calls]
            return turns.settle_child_calls(state, texts, now)


def _tenant(drive: "LeasedWriter") -> str:
    return drive.entry.record.tenant


async def _mail(drive: "LeasedWriter", mail_id: str) -> ChildMail | None:
    """Return an outcome; that of an imported session is read from its child's log."""
    entry = await drive.resources.child_inbox.mail_entry(_tenant(drive), mail_id)
    if entry is not None:
        return decode_mail(entry.data) if entry.state == "open" else None
    child = drive.log.state.children[mail_id.rpartition(".")[0]]
    task = rebuilt_task(child, drive.entry.record, 0, 0)
    answer = await read_answer(drive.resources, task)
    output, error = answer.get("output"), answer.get("error", answer.get("message"))
    return ChildMail(
        id=mail_id,
        task_id=task.id,
        session_id=task.session_id,
        agent=task.agent,
        description=task.description,
        status=task.status,
        resume_count=task.resume_count,
        output=msgspec.UNSET if output is None else raw_json(output),
        error=error,
    )


async def _answer(drive: "LeasedWriter", call: Call) -> str:
    """Return the result of a call that waited for a background agent, for the model."""
    mail_id = call.mail or ""
    mail = await drive.resources.child_inbox.mail(_tenant(drive), mail_id)
    if mail is not None:
        answer = mail_answer(mail[1])
    else:
        answer = await _answer_without_mail(drive, mail_id.rpartition(".")[0])
    return msgspec.json.encode(answer).decode()


async def _answer_without_mail(drive: "LeasedWriter", task_id: str) -> dict[str, object]:
    """Return what is known of a task whose outcome went elsewhere, or that was cleared."""
    try:
        task = (await drive.resources.child_inbox.find(_tenant(drive), task_id)).task
    except NotFound as error:
        return {"task_id": task_id, "error": error.message, **error.details}
    if task.is_active:  # it was resumed again meanwhile
        return task_answer(task, message=STILL_RUNNING)
    return await read_answer(drive.resources, task)


async def cancel_children(drive: "LeasedWriter", children: Sequence[Child]) -> None:
    """Cancel the background agents of a cancelled run; each writes its end to the parent's log."""
    inbox, stream = drive.resources.child_inbox, drive.lease.stream
    for child in children:
        task = rebuilt_task(child, drive.entry.record, 0, 0)
        await inbox.end_child(task, stream, BACKGROUND_AUTHOR, CANCELLED_REASON, "worker")
