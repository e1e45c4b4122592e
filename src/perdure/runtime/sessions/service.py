"""What every door does: show sessions, take messages and decisions, follow a run to its rest."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

import anyio
import msgspec

from perdure.core.log import events as facts
from perdure.core.pending import record as pending
from perdure.core.pending.commands import Approve, Command, Expire, SubmitResult
from perdure.core.pending.record import PendingRecord
from perdure.core.pending.settlement import Settlement, is_overdue, lost
from perdure.core.session.state import State
from perdure.errors import Corrupt, NotFound, PerdureError, Refused
from perdure.runtime.agents.agents import Agents, ReadyAgent
from perdure.runtime.engine.host import Drive, Host
from perdure.runtime.records.cache import CachedSession
from perdure.runtime.records.content import check_text
from perdure.runtime.records.entries import (
    STUCK,
    SessionEntry,
    SessionRef,
    erased_as_not_found,
    open_calls,
    readable,
)
from perdure.runtime.records.log import as_record
from perdure.runtime.records.retention import KEEP_MS
from perdure.runtime.resources import Resources
from perdure.runtime.sessions.snapshot import Snapshots, read_log
from perdure.runtime.tools.invoke import accepts_result
from perdure.runtime.tools.tool import Tool
from perdure.runtime.views import Event, Result, Snapshot, event_of
from perdure.store.base import Write


async def check_acceptable(agents: Agents, record: PendingRecord, command: Command) -> None:
    """Refuse what could not work with the code that is here; without code, take it."""
    agent = agents.find(record.agent)
    if agent is None:
        return
    if isinstance(command, Approve):
        agent = await agents.listed(agent)
    tool = agent.tool(record.tool)
    if tool is None and agent.problem is not None:
        return
    match command:
        case Approve() if tool is None:
            raise Refused(
                f"agent {agent.name!r} has no tool {record.tool!r} any more",
                code="TOOL_MISSING",
                hint="deploy the tool again, or deny or respond instead",
            )
        case Approve() if tool is not None:
            _check_approved(agent, tool, {**record.input, **(command.args or {})})
        case SubmitResult() if tool is not None and not accepts_result(tool, command.output):
            raise Refused("Result validation failed", code="RESULT_INVALID")
        case _:
            pass


def _check_approved(agent: ReadyAgent, tool: Tool[..., Any], args: dict[str, Any]) -> None:
    """Whether a call can run as it is approved; the rules of the agent stand above a person's."""
    rule = agent.permissions.denies((tool.name,), tool.validate(args))
    if rule is not None:
        raise Refused(
            f"the permissions of agent {agent.name!r} deny this call to {tool.name} ({rule.text})",
            code="DENIED",
            hint="approve it with other arguments, or deny it",
        )


def check_command(command: Command) -> None:
    """Refuse what is no text, or no JSON, where that is needed."""
    for one in fields(command):
        name, value = one.name, getattr(command, one.name)
        if value is None and one.default is None:
            continue
        if name in ("args", "metadata"):
            _check_object(name, value)
        elif name == "remember" and isinstance(value, bool):
            continue
        else:
            check_text(name, value)


def _check_object(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise Refused(f"{name} must be an object, not {value!r}", code="VALUE_INVALID")
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise Refused(f"{name} is not JSON: {error}", code="VALUE_INVALID") from error


NO_KIND = "nothing"  # no stream is of this kind
FOLLOW_S = 0.25  # how often a session that another process drives is looked at


@dataclass(slots=True)
class Service:
    """The runtime behind every door: Python, the command line, HTTP."""

    desk: Resources
    agents: Agents
    host: Host
    resumes_running: bool = True  # at a start: go on with what was running, or fail it
    running_before: dict[str, SessionEntry] = field(
        default_factory=dict
    )  # by stream, when we started
    keep_settled_ms: int = KEEP_MS  # how long settled calls can be asked for by their id
    worked_at: float | None = None  # monotonic; the last round of the worker here, if there is one

    # --- showing ------------------------------------------------------------------------------

    @property
    def _showing(self) -> Snapshots:
        return Snapshots(self.desk, self.agents, self.worked_at is not None)

    async def sight(self, known: SessionEntry) -> Snapshot:
        """Everything about a session, from its open calls and its log."""
        return await self._showing.sight(known)

    async def listed(self, known: SessionEntry) -> Result[Any]:
        """A session as it stands; as its entry says, with the problem, if its log is corrupt."""
        try:
            return await self.result(known)
        except Corrupt as error:
            return self._showing.as_result(Snapshot(known.record, State(), problem=error))

    async def result(self, known: SessionEntry, rested: CachedSession | None = None) -> Result[Any]:
        """A session as it stands, or as a drive has just left it."""
        showing = self._showing
        return showing.as_result(await showing.sight(known, rested))

    async def wake_stuck(self) -> None:
        """Let sessions be looked at again which other code could not move: ours may."""
        async for known in self.sessions(None, STUCK):
            if self.agents.find(known.record.agent) is not None:
                with suppress(NotFound):  # deleted meanwhile
                    await self.desk.outside.wake(known)

    async def sessions(
        self, tenant: str | None, state: str | None = None
    ) -> AsyncIterator[SessionEntry]:
        """Every session that can be seen from here, without reading logs; `state` of its entry."""
        after: str | None = None
        while True:
            page = await self.desk.store.find("session", state=state, after=after, limit=500)
            for known in readable(page.entries, SessionEntry.of):
                if tenant is None or known.record.tenant == tenant:
                    yield known
            if page.next is None:
                return
            after = page.next

    async def pending(
        self, tenant: str | None, *, status: str | None = None, stream: str | None = None
    ) -> AsyncIterator[PendingRecord]:
        """Pending calls; without a status the open ones, with "all" every one."""
        wanted = {None: "open", "all": None, "waiting": "open", "processing": "open"}
        state = wanted.get(status, status)
        after: str | None = None
        while True:
            page = await self.desk.store.find(
                "pending", state=state, stream=stream, after=after, limit=500
            )
            for record in readable(page.entries, lambda entry: pending.decode(entry.data)):
                if status in ("waiting", "processing") and record.status != status:
                    continue
                if tenant is None or record.tenant == tenant:
                    yield record
            if page.next is None:
                return
            after = page.next

    async def events(
        self, known: SessionEntry, after: int = 0, limit: int | None = None
    ) -> list[Event]:
        """Events of one session, oldest first."""
        with erased_as_not_found(known.record.id):
            page = await self.desk.store.read(known.stream, after, limit)
        names = (known.record.tenant, known.record.id)
        return [event_of(names, record) for record in page.records]

    async def at_home(self, address: SessionRef) -> SessionRef:
        """The address with what the session's own agent says about messages."""
        if address.agents:
            return address
        known = await self.desk.outside.find(address)
        agent = None if known is None else self.agents.find(known.record.agent)
        return (
            address if agent is None else replace(address, while_waiting=agent.agent.while_waiting)
        )

    async def revoke(self, known: SessionEntry, number: int, by: str, via: str) -> None:
        """Ask again about what the decision of that number had allowed. Raises NotFound."""
        check_text("by", by)
        log = await read_log(self.desk.store, known)
        if all(one.number != number for one in log.state.allowed):
            raise NotFound(
                f"session {known.record.id!r} remembers no permission {number}",
                code="PERMISSION_NOT_FOUND",
                hint=f"perdure sessions permissions {known.record.id}",
            )
        fact = facts.Revoked(decision=number, by=by, via=via)
        record = as_record(fact, self.desk.store.now())
        with erased_as_not_found(known.record.id):
            await self.desk.store.commit([Write(known.stream, [record])])

    async def change_metadata(
        self, address: SessionRef, change: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> None:
        """Change metadata by what it is now: of several at once each sees the one before."""
        while True:
            known = await self.desk.outside.known(address)
            changes = change(dict((await read_log(self.desk.store, known)).state.metadata))
            if not changes or await self.desk.outside.put_metadata(known, changes):
                return

    # --- settling -----------------------------------------------------------------------------

    async def settle(
        self, pending_id: str, command: Command, tenant: str | None = None
    ) -> Settlement:
        """A decision, result, error or cancellation from outside."""
        check_command(command)

        async def look(record: PendingRecord) -> None:
            if record.epoch is not None and record.is_open:
                await self._check_held(record)
            await check_acceptable(self.agents, record, command)

        return await self.desk.settling.settle(pending_id, command, tenant=tenant, inspect=look)

    async def _check_held(self, record: PendingRecord) -> None:
        """Refuse an answer for which a driver waited in place that is gone."""
        known = await self.desk.outside.known(SessionRef(record.tenant, record.session_id))
        if known.stream in self.host.drives or await self._is_driven(known):
            return
        await self.host.drive_until_parked(known)  # to record that, where the agent is known
        raise lost(record)

    async def _is_driven(self, known: SessionEntry) -> bool:
        with erased_as_not_found(known.record.id):
            if (await self.desk.store.read(known.stream, limit=0)).holder is None:
                return False
            await self.host.claim(NO_KIND, 0)  # by which the store notices who is dead
            return (await self.desk.store.read(known.stream, limit=0)).holder is not None

    # --- following ----------------------------------------------------------------------------

    async def go_on(self, known: SessionEntry) -> SessionEntry:
        """Let a session move that could: one that failed, or was cut in a run, gets a new run."""
        if known.record.may_start_again:
            await self.desk.outside.start_again(known)
            record = known.record
            return await self.desk.outside.known(SessionRef(record.tenant, record.id))
        await self.wake(known)
        return known

    async def resume(self, known: SessionEntry) -> SessionEntry:
        """The same on somebody's word: a model that was to be asked again later is asked now."""
        if not known.record.is_over and await self.backs_off(known):
            log = await read_log(self.desk.store, known)
            if log.state.retry is not None:
                await self.desk.outside.hurry(known)
                return known
        return await self.go_on(known)

    async def backs_off(self, known: SessionEntry) -> bool:
        """Whether a model is to be asked, and nobody does before some instant."""
        with erased_as_not_found(known.record.id):
            at = await self.desk.store.read(known.stream, limit=0)
        if at.holder is not None or at.due is None or at.due <= self.desk.store.now():
            return False
        record = known.record
        found = await self.desk.outside.known(SessionRef(record.tenant, record.id))
        return found.record.state != "waiting"  # nor for a call; over, but for a summary by hand

    async def wake(self, known: SessionEntry) -> None:
        """Let somebody look at once at a session that is not over, also if a failure put it off."""
        if known.record.state in ("pending", "running"):
            await self.desk.outside.wake(known)

    async def follow(self, known: SessionEntry) -> Drive | None:
        """Drive the session here if it is free, else watch whoever drives it, until it rests.

        Answers the drive that parked it, if that was ours.
        """
        drive = await self.drive(known)
        if drive is not None and not drive.backs_off:
            return drive
        changed = asyncio.Event()

        def heard(_: int) -> None:
            changed.set()

        with self.host.watch.listening(known.stream, heard):
            while True:
                changed.clear()
                drive = await self._driven(known)
                if drive is not None and not drive.backs_off:
                    return drive
                while await self._waits_to_ask(known, changed):
                    pass
                if await self._rests(known):
                    return None
                with anyio.move_on_after(FOLLOW_S):
                    await changed.wait()

    async def _waits_to_ask(self, known: SessionEntry, changed: asyncio.Event) -> bool:
        """Let a moment pass, if the session backs off and could then be driven here."""
        if self.agents.find(known.record.agent) is None or not await self.backs_off(known):
            return False
        with anyio.move_on_after(FOLLOW_S):
            await changed.wait()
        changed.clear()
        return True

    async def drive(self, known: SessionEntry) -> Drive | None:
        """Drive the session here, if something is to be done and nobody does it, until it rests."""
        await self.prepare(known)
        return await self._driven(known)

    async def prepare(self, known: SessionEntry) -> None:
        """What no worker may have done: overdue calls end, a stuck session is looked at again."""
        if known.record.state in ("waiting", "running"):
            await self.expire(known)
        if known.record.problem is not None:
            await self.desk.outside.wake(known)

    async def _driven(self, known: SessionEntry) -> Drive | None:
        """The drive that parked the session here, if there was one to begin, or under way."""
        # One that was under way may have parked before what we follow was recorded.
        is_old = known.stream in self.host.drives
        drive = await self.host.drive_until_parked(known)
        if drive is None:
            return None
        if drive.error is not None:
            raise drive.error
        return drive if drive.parked and not is_old else None

    async def _rests(self, known: SessionEntry) -> bool:
        with erased_as_not_found(known.record.id):
            at = await self.desk.store.read(known.stream, limit=0)
        if at.holder is not None:
            return False
        is_due = at.due is not None and at.due <= self.desk.store.now()
        return not is_due or self.agents.find(known.record.agent) is None

    async def expire(self, known: SessionEntry) -> None:
        """Settle the overdue calls of one session, where no worker does it."""
        now, rested = self.desk.store.now(), self.desk.near.resting(known.stream)
        # An entry that was looked up may be newer than what is remembered, and so may the calls.
        waits = None if rested is None or rested.known is not known else rested.waits
        if waits is not None and not any(is_overdue(one.record, now) for one in waits.values()):
            return
        async for entry in open_calls(self.desk.store, known.stream):
            if is_overdue(pending.decode(entry.data), now):
                try:
                    await self.desk.settling.settle(entry.key, Expire())
                except PerdureError:
                    continue  # somebody else did
