"""Verbs on sessions for one caller: what Python, HTTP, pages, MCP and the command line offer.

`calls` has those on pending calls, `logs` those on logs.
"""

import hashlib
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

from perdure.core.log import events
from perdure.core.roles import Permit
from perdure.core.session.naming import check_id
from perdure.core.session.state import State
from perdure.core.webhooks.deliveries import Hook
from perdure.errors import NotFound, Refused
from perdure.ids import new_id
from perdure.runtime.inbox.sessions import NewMessage
from perdure.runtime.records.entries import SessionEntry, SessionRef
from perdure.runtime.sessions.listing import (
    SessionFilter,
    count_sessions,
    recent_sessions,
    session_page,
)
from perdure.runtime.sessions.message_content import plain_text, store_content
from perdure.runtime.sessions.replies import Reply, check_context, settle_by_reply
from perdure.runtime.sessions.service import Service
from perdure.runtime.sessions.summary import request_summary
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.runtime.sessions.verbs.caller_views import CallerViews
from perdure.runtime.sessions.verbs.calls import CallVerbs
from perdure.runtime.sessions.verbs.logs import LogVerbs
from perdure.runtime.views import Snapshot, agent_view, permission_view, session_view
from perdure.views.base import bind
from perdure.views.bodies import (
    CancelBody,
    CompactBody,
    ContentIn,
    DecisionIn,
    ForkBody,
    MessageBody,
    NewSessionBody,
)
from perdure.views.cursors import decode_cursor, encode_cursor
from perdure.views.health import AgentInfo
from perdure.views.sessions import (
    DeletedSession,
    PausedState,
    PermissionList,
    Result,
    SessionSummary,
    SummaryPage,
)

T = TypeVar("T")

_COUNT: Final = re.compile(r"[0-9]{1,15}")  # of all sessions, in the cursor of a list


class Sent(NamedTuple):
    """Receipt of a message; `decided` says that it decided about a call."""

    decided: bool = False
    pending_id: str | None = None
    duplicate: bool = False


class SessionVerbs:
    """Sessions as one caller sees and changes them."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self.service = service
        self.caller = caller
        self._views = CallerViews(service, caller)
        self.calls = CallVerbs(service, caller)
        self.logs = LogVerbs(service, caller)

    # --- reading ------------------------------------------------------------------------------

    async def get(self, session_id: str) -> Result[Any]:
        """Return a session; one whose log is damaged is failed. Raises NotFound."""
        return await self._result(await self._views.entry(session_id))

    async def _result(self, entry: SessionEntry) -> Result[Any]:
        return self.view(await self.service.listed_result(entry))

    def view(self, result: Result[T]) -> Result[T]:
        """Return a session as the caller sees it, whose calls have the caller's verbs."""
        shown = self._views.session(result)
        for call in shown.pending:
            bind(call, _owner=self.calls)
        return shown

    async def paused(self, session_id: str) -> PausedState:
        """Return its open calls, and the execution states of its paused runs. Raises NotFound."""
        from perdure.runtime.sessions.execution_states import pause_state

        return await pause_state(self.service, await self.get(session_id))

    async def page(
        self, chosen: SessionFilter, after: str | None, limit: int
    ) -> tuple[tuple[Result[Any], ...], str | None]:
        """Return up to `limit` sessions by id, and the id after which more follow."""
        visible = replace(chosen, tenant=self.caller.tenant)
        results, last = await session_page(self.service, visible, after, limit)
        return tuple([self.view(result) for result in results]), last

    async def all(
        self, chosen: SessionFilter | None = None, *, is_complete: bool = True
    ) -> AsyncIterator[Result[Any]]:
        """Yield sessions; unless complete, with what their entries say, and no log is read."""
        self.caller.require(Permit.READ)
        chosen = chosen or SessionFilter()
        async for entry in self.service.sessions(self.caller.tenant, damaged=True):
            if not chosen.may_match(entry.record):
                continue
            result = session_view(Snapshot(entry.record, State()))
            if is_complete:
                result = await self._result(entry)
            if chosen.state in (None, result.state):
                yield result

    async def recent(
        self, chosen: SessionFilter, after: str | None, limit: int, most: int | None = None
    ) -> tuple[list[SessionSummary], str | None]:
        """Return up to `limit` sessions, the last changed first: see `recent_sessions`."""
        visible = replace(chosen, tenant=self.caller.tenant)
        summaries, following = await recent_sessions(self.service, visible, after, limit, most)
        return [self._views.summary(summary) for summary in summaries], following

    async def recent_page(
        self, chosen: SessionFilter, cursor: str | None, limit: int, *, counts: bool = False
    ) -> SummaryPage:
        """Return a page of sessions, the last changed first. Raises Refused for a bad cursor.

        With `counts` it has the number of all: its cursor has it too, so that only the first page
        counts. A store that may only be read may refuse to count.
        """
        position = decode_cursor(cursor)
        if position is None:
            after, count = None, await self.count(chosen) if counts else None
        else:
            at, key, counted = position
            after, count = f"0:{at}:{key}", int(counted) if _COUNT.fullmatch(counted) else None
        summaries, last = await self.recent(chosen, after, limit)
        following = None
        if last is not None:
            _, at_text, key = last.split(":", 2)
            counted = "" if count is None else str(count)
            following = encode_cursor((max(int(at_text), 0), key, counted))
        return SummaryPage(sessions=tuple(summaries), count=count, next=following)

    async def count(self, chosen: SessionFilter) -> int | None:
        """Return the number of sessions that match; None if only their entries tell."""
        return await count_sessions(self.service, replace(chosen, tenant=self.caller.tenant))

    def agents(self) -> tuple[AgentInfo, ...]:
        """Return the agents of this process with their tools."""
        self.caller.require(Permit.READ)
        return tuple([agent_view(agent) for agent in self.service.agents.all()])

    async def parked(
        self, session_id: str, seconds: float, is_closing: Callable[[], bool]
    ) -> tuple[Result[Any], bool]:
        """Return a session once it is parked, or as it is when the time is over; is it parked?"""
        entry = await self._views.entry(session_id)
        if not seconds:
            return await self._result(entry), False
        is_parked = await self.service.runs.wait_until_parked(entry, seconds, is_closing)
        return await self.get(session_id), is_parked

    # --- starting and continuing --------------------------------------------------------------

    def new_id(self, session_id: str | None, key: str | None) -> str:
        """Return the id of a new session: this one, else one derived from a key, else a new one."""
        if session_id is not None:
            return check_id(session_id)
        if key is None:
            return new_id("s")
        source = f"{self.caller.home_tenant}\n{self.caller.name}\n{check_id(key, 'key')}"
        return f"s_{hashlib.sha256(source.encode()).hexdigest()[:32]}"

    async def create(self, session_id: str, body: NewSessionBody, key: str | None = None) -> bool:
        """Create a session, or continue the one that has this id; is it new?

        Raises NotFound for an agent that none of those here is.
        """
        ref = self.service.new_ref(
            self.caller.home_tenant,
            session_id,
            body.agent,
            metadata=body.metadata,
            notify=_hook(body),
            queue=body.queue,
        )
        if body.message is None:
            return (await self.service.inbox.create(ref)).is_new
        return await self._send(ref, body.message, key, body.by)

    async def send(self, session_id: str, body: MessageBody, key: str | None = None) -> Sent:
        """Send a message, which decides about a call only if it names the run that waits for it.

        Raises NotFound, Refused, NotAllowed, Conflict.
        """
        _check_message(body)
        if body.task_id is None:
            self.caller.require(Permit.OPERATE)
        entry = await self._replied_entry(session_id, body.task_id)
        check_context(entry, body.context_id)
        if body.task_id is not None:
            settled = await settle_by_reply(self.service, entry, self._reply(body, body.task_id))
            if settled is not None:
                return Sent(True, settled.record.id, settled.duplicate)
        self.caller.require(Permit.OPERATE)
        content = "" if body.content is None else body.content
        await self._send(self._views.ref(session_id), content, key, body.by)
        return Sent()

    async def _send(
        self, ref: SessionRef, content: ContentIn, key: str | None, by: str | None
    ) -> bool:
        """Record a message; return whether it created the session."""
        key = None if key is None else check_id(key, "key")
        actor = self.caller.actor(by)
        entry = None if isinstance(content, str) else await self.service.find(ref)
        stored = await store_content(self.service, entry, content)
        message = NewMessage(stored, key, actor, via=self.caller.via)
        return (await self.service.send(ref, message)).is_new

    async def _replied_entry(self, session_id: str, task_id: str | None) -> SessionEntry:
        try:
            return await self._views.entry(session_id)
        except NotFound as error:
            if task_id is None:
                raise
            raise NotFound(
                "failed to load execution state: execution state not found for task "
                f"{task_id}: {error.message}",
                code=error.code,
                hint=error.hint,
            ) from error

    def _reply(self, body: MessageBody, task_id: str) -> Reply:
        caller, decision = self.caller, body.decision
        if isinstance(decision, str):
            decision = DecisionIn(kind=decision)
        author = (caller.actor(body.by) or "", caller.via, caller.approver_role(body.by))
        return Reply(task_id, plain_text(body.content), decision, *author)

    async def start_again(self, session_id: str) -> str:
        """Start a new session with the first message of one; return its id."""
        entry = await self._views.entry(session_id)
        first, _ = await self.service.feed.events(entry, 0, 1)
        if first and first[0].type == "user":
            name = new_id("s")
            ref = self.service.new_ref(self.caller.home_tenant, name, entry.record.agent)
            content, by = first[0].data["content"], self.caller.actor()
            await self.service.send(ref, NewMessage(content, None, by, via=self.caller.via))
            return name
        raise Refused(
            "the first message of this session cannot be read", hint="start a new session by hand"
        )

    async def export(self, session_id: str) -> AsyncIterator[bytes]:
        """Return the lines of a session with its background agents, without secrets."""
        return self.service.transfers.export(await self._views.entry(session_id))

    # --- changing -----------------------------------------------------------------------------

    async def resume(self, session_id: str) -> None:
        """Make a session due now, also after its run failed."""
        self.caller.require(Permit.OPERATE)
        entry = await self._views.entry(session_id)
        await self.service.runs.prepare(entry)
        await self.service.runs.resume(entry)

    async def cancel(self, session_id: str, body: CancelBody) -> Result[Any]:
        """Cancel the run: after this, nothing of it starts any more."""
        self.caller.require(Permit.OPERATE)
        actor, ref = self.caller.actor(body.by), self._views.ref(session_id)
        keep = body.keep_children
        await self.service.inbox.cancel(
            ref, actor, body.reason, self.caller.via, keep_children=keep
        )
        return await self.get(session_id)

    async def fork(self, session_id: str, body: ForkBody) -> Result[Any]:
        """Copy a session up to the last event, not after `at`, at which every call was settled."""
        self.caller.require(Permit.OPERATE)
        entry = await self._views.entry(session_id)
        copy = await self.service.transfers.fork(entry, at=body.at, session_id=body.session_id)
        return await self._result(copy)

    async def compact(self, session_id: str, body: CompactBody) -> None:
        """Let the model summarize the conversation so far."""
        self.caller.require(Permit.OPERATE)
        entry = await self._views.entry(session_id)
        request = events.CompactionRequested(
            keep=body.keep, instructions=body.instructions, by=self.caller.actor(body.by)
        )
        await request_summary(self.service, entry, request)

    async def set_metadata(self, session_id: str, changes: Mapping[str, Any]) -> Result[Any]:
        """Change metadata; None removes a key."""
        self.caller.require(Permit.OPERATE)
        await self.service.inbox.set_metadata(self._views.ref(session_id), changes)
        return await self.get(session_id)

    async def delete(self, session_id: str) -> DeletedSession:
        """Delete a session with its log and calls; a run that is not over is cancelled first."""
        self.caller.require(Permit.ADMIN)
        ref = self._views.ref(session_id)
        state = await self.service.erase(ref, self.caller.actor(), self.caller.via)
        return DeletedSession(session_id=session_id, state=state)

    async def permissions(self, session_id: str) -> PermissionList:
        """Return the permissions that approvals with `remember` gave for the rest of it."""
        return await self._permissions(await self._views.entry(session_id))

    async def revoke(self, session_id: str, number: int, by: str | None = None) -> PermissionList:
        """Revoke a permission, so that its calls need approval again; return the others."""
        self.caller.require(Permit.DECIDE)
        entry, caller = await self._views.entry(session_id), self.caller
        await self.service.revoke(entry, number, caller.author(by), caller.via)
        return await self._permissions(entry)

    async def _permissions(self, entry: SessionEntry) -> PermissionList:
        remembered = (await self.service.snapshot(entry)).log_state.permissions
        permissions = tuple([permission_view(item) for item in remembered])
        return PermissionList(session_id=entry.record.id, permissions=permissions)


def _hook(body: NewSessionBody) -> Hook | None:
    """Return the receiver of the session's webhooks. Raises Refused for a secret without URL."""
    if body.notify_url is not None:
        return Hook(body.notify_url, body.notify_secret)
    if body.notify_secret is not None:
        raise Refused(
            "notify_secret needs notify_url",
            code="BODY_INVALID",
            hint="add notify_url, or leave out notify_secret",
        )
    return None


def _check_message(body: MessageBody) -> None:
    if body.decision is not None and body.task_id is None:
        raise Refused(
            "a decision needs the task id of the run that waits for it",
            code="TASK_NEEDED",
            hint="pass it as taskID, or POST /pending/{id}/approve",
        )
    if body.content is None and body.decision is None:
        raise Refused(
            "the body has neither content nor a decision",
            code="CONTENT_INVALID",
            hint='send a message as {"content": …}',
        )
