"""Pending calls as every entry point uses them: found, listed, settled."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.pending import record as pending
from perdure.core.pending.commands import Command
from perdure.core.pending.policy import accepted_acts
from perdure.core.pending.progress import ProgressReport, with_progress
from perdure.core.pending.record import PendingRecord
from perdure.core.pending.settlement import Settlement, lost_at_restart
from perdure.core.session.naming import session_not_found
from perdure.core.webhooks import signatures
from perdure.core.webhooks.deliveries import Hook
from perdure.errors import Conflict, Corrupt, NotFound, PerdureError
from perdure.runtime.agents.agents import Agents
from perdure.runtime.diagnosis.agents import call_problem
from perdure.runtime.diagnosis.calls import diagnosed, narrowed
from perdure.runtime.inbox.pending import StreamClaim
from perdure.runtime.records.entries import (
    SessionEntry,
    SessionRef,
    all_readable,
    decode_readable,
    open_calls,
    pending_put,
)
from perdure.runtime.records.log import as_record
from perdure.runtime.resources import Resources
from perdure.runtime.sessions.command_checks import (
    check_acceptable,
    checked_command,
    checked_commands,
)
from perdure.runtime.sessions.pending_pages import (
    OPEN_STATUSES,
    STATES,
    PendingFilter,
    count_pending,
    pending_page,
    stream_calls,
)
from perdure.runtime.sessions.runs import Runs
from perdure.store.base import Entry, Gone, Lease, NoStream, Put, VersionMoved, Write
from perdure.store.shared.all_pages import all_entries
from perdure.views.calls import PendingCall
from perdure.views.health import Statistics
from perdure.views.literals import Act, PendingSort

if TYPE_CHECKING:
    from perdure.runtime.engine.driver import Driver

Settlements = list[Settlement]  # `list` is a method below
Acts = Callable[[PendingRecord], tuple[Act, ...]]  # what somebody may do about a call


class SettlingDrive(NamedTuple):
    """The drive that settlements began, at its end, and whether they had all been given before."""

    drive: "Driver | None"
    is_repeated: bool


Records = list[PendingRecord]


class PendingCalls:
    """The pending calls of all sessions of a runtime."""

    def __init__(self, resources: Resources, agents: Agents, runs: Runs) -> None:
        self._resources = resources
        self._agents = agents
        self._runs = runs

    # --- reading ------------------------------------------------------------------------------

    async def get(self, pending_id: str, tenant: str | None = None) -> PendingRecord:
        """Return one pending call. Raises NotFound."""
        return await self._resources.pending_inbox.pending_record(pending_id, tenant)

    async def list(
        self, tenant: str | None, *, status: str | None = None, stream: str | None = None
    ) -> AsyncIterator[PendingRecord]:
        """Yield pending calls: the open ones, those of a status, or with "all" every one."""
        state = STATES.get(status, status)
        store = self._resources.store
        async for record in all_readable(store, "pending", _decode, state=state, stream=stream):
            if status in OPEN_STATUSES and record.status != status:
                continue
            if tenant is None or record.tenant == tenant:
                yield record

    async def page(
        self,
        pending_filter: PendingFilter,
        after: str | None,
        limit: int,
        sort: PendingSort = "age",
        most: int | None = None,
    ) -> tuple[Records, str | None]:
        """Return up to `limit` calls that match, and the cursor after them if more follow.

        It ends early where about `most` entries were read. Raises ValueError for a bad cursor.
        """
        return await pending_page(self._resources.store, pending_filter, after, limit, sort, most)

    async def of_stream(
        self, stream: str, pending_filter: PendingFilter, sort: PendingSort
    ) -> Records:
        """Return the calls of one session that match, in an order; no other session is read."""
        return await stream_calls(self._resources.store, stream, pending_filter, sort)

    async def count(self, pending_filter: PendingFilter) -> int:
        """Return the number of all calls that match."""
        return await count_pending(self._resources.store, pending_filter)

    async def statistics(self, hours: int, tenant: str | None) -> Statistics:
        """Count the calls of the last hours, and how fast people decided."""
        from perdure.runtime.sessions.call_statistics import call_statistics

        def is_visible(record: PendingRecord) -> bool:
            return tenant in (None, record.tenant)

        return await call_statistics(self._resources.store, hours, is_visible)

    def entries(
        self, state: str | None = "open", stream: str | None = None
    ) -> AsyncIterator[Entry]:
        """Yield the index entries of pending calls, without decoding them."""
        return all_entries(self._resources.store, "pending", state=state, stream=stream)

    async def of_session(self, entry: SessionEntry) -> tuple[PendingRecord, ...]:
        """Return the open calls of one session."""
        calls = open_calls(self._resources.store, entry.stream)
        return tuple([_decode(call) async for call in calls])

    async def find_in(self, stream: str, pending_id: str) -> PendingRecord | None:
        """Return a call of one session's stream, open or settled; None if it is not there."""
        entry = await self._resources.store.get("pending", pending_id)
        return None if entry is None or entry.stream != stream else _decode(entry)

    async def find_open(self, pending_id: str) -> PendingRecord | None:
        """Return a call if it is open and can be read."""
        entry = await self._resources.store.get("pending", pending_id)
        records = decode_readable(() if entry is None else (entry,), _decode)
        return next((narrowed(r, self._problem(r)) for r in records if r.is_open), None)

    def _problem(self, record: PendingRecord) -> PerdureError | None:
        return call_problem(self._agents, record, self._resources.store.now())

    async def wait_until_settled(self, record: PendingRecord) -> None:
        """Return when a call is not open any more, or its session was deleted."""

        async def is_settled() -> bool:
            entry = await self._resources.store.get("pending", record.id)
            records = decode_readable(() if entry is None else (entry,), _decode)
            return not any(newest.is_open for newest in records)

        ref = SessionRef(record.tenant, record.session_id)
        entry = await self._resources.session_inbox.find(ref)
        if entry is not None:
            await self._runs.wait_for(entry, is_settled, drive=False)

    def view(
        self,
        stored: PendingRecord,
        acts: Callable[[PendingRecord], tuple[Act, ...]] = accepted_acts,
        damage: PerdureError | None = None,
    ) -> PendingCall:
        """Return a record as users hold it; `acts` says what they may do about it.

        `damage` is that of the log of its session, if an open call has one that cannot be read.
        `schema` is that of the answer to a question, or of the arguments of a tool known here.
        """
        problem = damage or self._problem(stored)
        record = narrowed(stored, problem)
        agent = self._agents.find(record.agent)
        is_run = agent is not None and record.kind in ("approval", "tool")
        tool = agent.tools.get(record.tool) if agent is not None and is_run else None
        schema = None if tool is None else dict(tool.parameters)
        return diagnosed(self._resources.pending_call(record, acts(record), schema), problem)

    # --- writing ------------------------------------------------------------------------------

    async def settle(
        self, pending_id: str, command: Command, tenant: str | None = None
    ) -> Settlement:
        """Give a call its outcome. Raises NotFound, Refused, or Conflict with the winner."""
        inbox, checked = self._resources.pending_inbox, checked_command(command)
        return await inbox.settle(pending_id, checked, tenant=tenant, inspect=self._inspect)

    async def settle_all(
        self,
        commands: Mapping[str, Command],
        tenant: str | None = None,
        stream: str | None = None,
    ) -> Settlements:
        """Give several calls their outcome in one commit, or none of them. Raises as `settle`.

        `stream` limits them to those of one session.
        """
        inbox, checked = self._resources.pending_inbox, checked_commands(commands)
        settled = await inbox.settle_all(
            checked, tenant=tenant, stream=stream, inspect=self._inspect
        )
        return settled.outcomes

    async def settle_and_drive(
        self, entry: SessionEntry, commands: Mapping[str, Command]
    ) -> SettlingDrive:
        """Settle calls of one session in one commit, and drive it here until it parks.

        There is no drive if this process could not claim it with the commit.
        """
        inbox, checked = self._resources.pending_inbox, checked_commands(commands)

        outcomes: Settlements = []

        async def commit(holder: str | None) -> list[Lease]:
            settled = await inbox.settle_all(
                checked,
                stream=entry.stream,
                inspect=self._inspect,
                claim=None if holder is None else StreamClaim(entry.stream, holder),
            )
            outcomes.extend(settled.outcomes)
            return [*settled.leases.values()]

        drive = await self._runs.commit_and_drive(entry.record.agent, commit)
        return SettlingDrive(drive, is_repeated=all(item.duplicate for item in outcomes))

    async def _inspect(self, record: PendingRecord, command: Command) -> bool:
        """Raise if a command that the record accepts could not take effect here.

        False: the tool is not known here, so that a result cannot be validated.
        """
        if record.epoch is not None and record.is_open:
            await self._check_held(record)
        return await check_acceptable(self._agents, record, command)

    async def _check_held(self, record: PendingRecord) -> None:
        """Raise Conflict if the driver that waited in place for this call has died."""
        ref = SessionRef(record.tenant, record.session_id)
        entry = await self._resources.session_inbox.session_entry(ref)
        if not await self._runs.check_driver(entry):
            raise lost_at_restart(record)

    async def expire_due(self) -> tuple[PendingRecord, ...]:
        """Settle every overdue call of the store; returns those that this settled."""
        return tuple(await self._resources.pending_inbox.expire_due())

    async def reset_stale(self) -> None:
        """Return calls that a stopped process had marked as started to `waiting`."""
        async for record in self._resources.pending_inbox.started_calls():
            await self.reset_if_stale(record)

    async def reset_if_stale(self, record: PendingRecord) -> PendingRecord:
        """Return the call, reset to `waiting` if it is `processing` and no driver has its session.

        The external work may still be running: its result is accepted in both statuses.
        """
        if record.status != "processing":
            return record
        inbox = self._resources.pending_inbox
        with suppress(NotFound, Corrupt, NoStream, Gone):  # erased or damaged since
            if await inbox.reset_stale(record.id):
                return await inbox.pending_record(record.id)
        return record

    async def report_progress(self, record: PendingRecord, report: ProgressReport) -> None:
        """Record the progress of an open call; its driver is not woken.

        A report that is outdated or was sent before changes nothing.
        """
        now = self._resources.store.now()
        event = events.Progress(
            pending_id=record.id,
            call_id=record.call_id,
            task_id=record.task_id,
            percent=report.percent,
            message=report.message,
            sequence=report.sequence,
        )

        def change(current: PendingRecord) -> PendingRecord:
            return with_progress(current, report, now)

        await self._resources.pending_inbox.update(record.id, change, lambda _: event)

    async def create(
        self, entry: SessionEntry, record: PendingRecord, hook: Hook | None = None
    ) -> PendingRecord:
        """Record a call that was started elsewhere for a session; `hook` receives its outcome.

        Raises NotFound if the session was deleted, Conflict if the id is taken.
        """
        hook_puts: list[Put] = []
        if hook is not None:
            # Named after the call: calls of one session may have different secrets.
            name, put = await self._resources.outbox.hook_put(f"{entry.stream}|{record.id}", hook)
            hook_puts = [replace(put, stream=entry.stream)]
            record = replace(record, hooks=(*record.hooks, name))
        records = [as_record(event, record.time.created) for event in _opening_events(record)]
        puts = [pending_put(record, 0, entry.stream), *hook_puts]
        write = Write(entry.stream, records)
        try:
            await self._resources.commits.commit([write], puts)
        except VersionMoved as error:
            raise Conflict(
                f"there is a pending call {record.id!r}",
                code="ID_TAKEN",
                hint="leave the id out, and it gets a new one",
            ) from error
        except (NoStream, Gone) as error:
            raise session_not_found(record.session_id) from error
        return record

    # --- signatures ---------------------------------------------------------------------------

    @property
    def has_server_secret(self) -> bool:
        """True if the server has a secret, so that every callback can be signed."""
        return bool(self._resources.address.webhook_secrets)

    async def has_secret(self, pending_id: str) -> bool:
        """Report whether a callback for this call can be signed: the server or it has a secret."""
        return self.has_server_secret or bool(await self._resources.own_secrets(pending_id))

    async def callback_check(
        self, headers: Mapping[str, str], pending_id: str
    ) -> signatures.StreamedCheck:
        """Return a check of a callback that is about to arrive, against the server's secrets.

        Without any, against those that were given for the call.
        """
        resources = self._resources
        secrets = resources.address.accepted_secrets(pending_id)
        secrets = secrets or await resources.own_secrets(pending_id)
        return signatures.StreamedCheck(headers, secrets, self._resources.store.now())

    async def verify_own(
        self, headers: Mapping[str, str], body: bytes, pending_id: str
    ) -> signatures.SignatureCheck:
        """Check the signature of a callback against the secrets that were given for its call."""
        own = await self._resources.own_secrets(pending_id)
        return signatures.verify(headers, body, own, self._resources.store.now())


def _decode(entry: Entry) -> PendingRecord:
    return pending.decode(entry.data)


def _opening_events(record: PendingRecord) -> tuple[events.Event, ...]:
    opened = events.Pending(
        pending_id=record.id,
        kind=record.kind,
        call_id=record.call_id,
        tool=record.tool,
        input=record.input,
        effect_id=record.effect_id,
        expires_at=record.timeout,
        task_id=record.task_id,
        redact=record.redact,
    )
    started = events.Progress(
        pending_id=record.id,
        call_id=record.call_id,
        returned=True,
        external_ref=record.external_ref,
        task_id=record.task_id,
    )
    return opened, started
