"""The records of pending calls: made, found, and given their outcome."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from perdure.app import Runtime, service_of, tenant_of
from perdure.core.log import events
from perdure.core.pending.commands import CancelCall, Expire, SubmitError, SubmitResult
from perdure.core.pending.record import PendingRecord, PendingTime
from perdure.core.pending.settlement import is_overdue
from perdure.core.session.naming import check_id
from perdure.core.webhooks.deliveries import Hook
from perdure.errors import Conflict, NotFound, Refused
from perdure.pending.behind import Call, Calls, session_of, settled, shown
from perdure.runtime.ids import secret_id
from perdure.runtime.records.entries import SessionEntry, pending_put, session_not_found
from perdure.runtime.records.log import as_record
from perdure.runtime.tools.tool import DEFERRED_TIMEOUT_MS
from perdure.runtime.values import Duration, parse_duration
from perdure.store.base import Gone, NoStream, Put, VersionMoved, Write

_RESULT_KEYS: Final = ("title", "output", "metadata")


class PendingToolCall:
    """The records of calls that wait, or have waited."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt

    async def create(  # noqa: PLR0913 - the fields of a record
        self,
        *,
        session_id: str,
        tool: str,
        input: Mapping[str, Any],  # noqa: A002 - the record's own word
        id: str | None = None,  # noqa: A002
        call_id: str | None = None,
        message_id: str = "",
        external_ref: str | None = None,
        timeout: Duration | None = DEFERRED_TIMEOUT_MS / 1000,  # noqa: ASYNC109 - of the call
        notify_url: str | None = None,
        notify_secret: str | None = None,
    ) -> Call:
        """Record a call that was started elsewhere on behalf of a session, which must exist.

        `notify_url` is told what becomes of it; `notify_secret` signs that, and what comes back.

        The session waits for it if `call_id` is a call of its present turn; any other is kept
        with the session, and its model is not told. Conflict if there is one of that id.
        """
        known = await session_of(self._rt, session_id)
        now = service_of(self._rt).desk.store.now()
        limit = None if timeout is None else parse_duration(timeout) or None
        record = PendingRecord(
            id=secret_id("p") if id is None else check_id(id, "pending id"),
            session_id=known.record.id,
            tenant=known.record.tenant,
            agent=known.record.agent,
            task_id=known.record.task_id or "",
            message_id=message_id,
            part_id=message_id,
            call_id=call_id or secret_id("call"),
            effect_id=secret_id("e"),
            tool=check_id(tool, "tool name"),
            input=json_object(input),
            kind="tool",
            time=PendingTime(created=now),
            timeout=None if limit is None else now + limit,
            external_ref=external_ref,
            redact=self._hidden(known.record.agent, tool),
            hooks=known.record.hooks,
        )
        told: list[Put] = []
        if notify_url is not None or notify_secret is not None:
            hook = Hook(notify_url or "", notify_secret, of_call=True)
            outbox = service_of(self._rt).desk.outbox
            # A name of its own: calls of one session may have different secrets.
            name, put = await outbox.hook(f"{known.stream}|{record.id}", hook)
            told = [replace(put, stream=known.stream)]
            record = replace(record, hooks=(*record.hooks, name))
        await self._record(known, record, told)
        return shown(self._rt, record)

    def _hidden(self, agent: str, name: str) -> tuple[str, ...]:
        """What is not shown of the arguments, where the code says so."""
        ready = service_of(self._rt).agents.find(agent)
        tool = None if ready is None else ready.tool(name)
        return () if tool is None else tuple(sorted(tool.hidden))

    async def _record(
        self, known: SessionEntry, record: PendingRecord, told: Sequence[Put]
    ) -> None:
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
        news = events.Progress(
            pending_id=record.id,
            call_id=record.call_id,
            returned=True,
            external_ref=record.external_ref,
            task_id=record.task_id,
        )
        records = [as_record(fact, record.time.created) for fact in (opened, news)]
        try:
            desk = service_of(self._rt).desk
            put = pending_put(record, 0, known.stream)
            await desk.store.commit(*desk.outbox.also([Write(known.stream, records)], [put, *told]))
        except VersionMoved as error:
            raise Conflict(f"there is a pending call {record.id!r}", code="ID_TAKEN") from error
        except (NoStream, Gone) as error:
            raise session_not_found(record.session_id) from error

    async def get(self, pending_id: str) -> Call | None:
        """One record; None if there is none, or none any more."""
        try:
            found = await service_of(self._rt).desk.settling.pending(
                pending_id, tenant_of(self._rt)
            )
        except NotFound:
            return None
        return shown(self._rt, found)

    async def list(self) -> Calls:
        """Every record, settled ones too."""
        return await self._all("all")

    async def list_by_status(self, status: str) -> Calls:
        """Those of one status."""
        return await self._all(status)

    async def list_by_session(self, session_id: str) -> Calls:
        """Those of one session, settled ones too. Raises NotFound."""
        known = await session_of(self._rt, session_id)
        return await self._all("all", known.stream)

    by_session = list_by_session

    async def find_expired(self) -> Calls:
        """Open calls whose deadline has passed; a worker expires them."""
        now = service_of(self._rt).desk.store.now()
        open_calls = service_of(self._rt).pending(tenant_of(self._rt))
        return [shown(self._rt, one) async for one in open_calls if is_overdue(one, now)]

    async def _all(self, status: str, stream: str | None = None) -> Calls:
        found = service_of(self._rt).pending(tenant_of(self._rt), status=status, stream=stream)
        return [shown(self._rt, record) async for record in found]

    async def complete(self, pending_id: str, result: str | Mapping[str, Any]) -> Call:
        """The call has this result: text, or `{title?, output, metadata?}`."""
        outcome = await settled(self._rt, pending_id, result_of(result))
        return shown(self._rt, outcome.record)

    async def fail(self, pending_id: str, error: str) -> Call:
        """The call has failed."""
        return shown(self._rt, (await settled(self._rt, pending_id, SubmitError(error))).record)

    async def expire(self, pending_id: str) -> Call:
        """The deadline of the call has passed. Conflict while it has not."""
        record = (await settled(self._rt, pending_id, Expire())).record
        if record.is_open and not record.late:
            raise Conflict(f"{pending_id} is not past its deadline", code="NOT_EXPIRED")
        return shown(self._rt, record)

    async def cancel(self, pending_id: str, *, by: str | None = None) -> Call:
        """Give the call up."""
        return shown(self._rt, (await settled(self._rt, pending_id, CancelCall(by))).record)


def json_object(value: Any) -> dict[str, Any]:
    """The value, if it is an object that can be kept; else Refused."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value), type=dict[str, Any])
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise Refused(f"input is not a JSON object: {error}", code="ARGS_INVALID") from error


def result_of(result: str | Mapping[str, Any]) -> SubmitResult:
    """The command that submits a result: text, or an object with no other keys."""
    if isinstance(result, str):
        return SubmitResult(result)
    if not isinstance(result, Mapping) or "output" not in result:
        raise Refused("a result is text, or {title?, output, metadata?}", code="VALUE_INVALID")
    if unknown := sorted(str(key) for key in result if key not in _RESULT_KEYS):
        raise Refused(f"unknown keys in result: {', '.join(unknown)}", code="VALUE_INVALID")
    return SubmitResult(result["output"], result.get("title"), result.get("metadata"))
