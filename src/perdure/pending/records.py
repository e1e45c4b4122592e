"""Records of pending calls: created, found and settled."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from perdure.app import Runtime, service_of, tenant_of
from perdure.core.json_depth import encode_value
from perdure.core.json_values import json_problem
from perdure.core.pending.commands import CancelCall, Expire, SubmitError, SubmitResult
from perdure.core.pending.record import PendingRecord, PendingTime
from perdure.core.pending.settlement import is_overdue
from perdure.core.session.naming import check_id
from perdure.core.webhooks.deliveries import Hook
from perdure.errors import Conflict, NotFound, Refused
from perdure.ids import secret_id
from perdure.pending.access import Call, Calls, call_json, session_entry, settle
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.tools.tool import DEFERRED_TIMEOUT_MS
from perdure.views.values import Duration, parse_duration

_RESULT_KEYS: Final = ("title", "output", "metadata")


class PendingToolCall:
    """The records of pending calls, open and settled."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt

    async def create(  # noqa: PLR0913 - the fields of a record
        self,
        *,
        session_id: str,
        tool: str,
        input: Mapping[str, Any],  # noqa: A002 - the name of the field
        id: str | None = None,  # noqa: A002
        call_id: str | None = None,
        message_id: str = "",
        external_ref: str | None = None,
        timeout: Duration | None = DEFERRED_TIMEOUT_MS / 1000,  # noqa: ASYNC109 - of the call
        notify_url: str | None = None,
        notify_secret: str | None = None,
    ) -> Call:
        """Record a call that was started elsewhere on behalf of a session, which must exist.

        Its outcome is delivered to `notify_url`; `notify_secret` signs that, and its callbacks.

        The session waits for it if `call_id` is an open call of its model; Refused if there is no
        such call. Without `call_id` the record is kept for the program: the session does not wait
        for it, and its model is not told of the result. Raises Conflict if the id is taken.
        """
        entry = await session_entry(self._rt, session_id)
        if call_id is not None:
            await self._check_call(entry, call_id)
        now = service_of(self._rt).now()
        limit = None if timeout is None else parse_duration(timeout) or None
        record = PendingRecord(
            id=secret_id("p") if id is None else check_id(id, "pending id"),
            session_id=entry.record.id,
            tenant=entry.record.tenant,
            agent=entry.record.agent,
            task_id=entry.record.task_id or "",
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
            redact=self._secret_names(entry.record.agent, tool),
            hooks=entry.record.hooks,
        )
        hook = None
        if notify_url is not None or notify_secret is not None:
            hook = Hook(notify_url or "", notify_secret, of_call=True)
        return call_json(self._rt, await service_of(self._rt).calls.create(entry, record, hook))

    async def _check_call(self, entry: SessionEntry, call_id: str) -> None:
        """Raise Refused if the session has no open call of this id."""
        state = (await service_of(self._rt).snapshot(entry)).log_state
        if all(call.id != call_id for call in state.open_calls):
            raise Refused(
                f"session {entry.record.id!r} has no open call {call_id[:100]!r} of its model",
                code="CALL_NOT_OPEN",
                hint="leave out call_id for a record that the session does not wait for",
            )

    def _secret_names(self, agent: str, name: str) -> tuple[str, ...]:
        """Return the names of the secret arguments, if the tool is known here."""
        ready = service_of(self._rt).agents.find(agent)
        tool = None if ready is None else ready.tool(name)
        return () if tool is None else tuple(sorted(tool.hidden_arguments))

    async def get(self, pending_id: str) -> Call | None:
        """Return one record; None if it does not exist, or was removed."""
        try:
            record = await service_of(self._rt).calls.get(pending_id, tenant_of(self._rt))
        except NotFound:
            return None
        return call_json(self._rt, record)

    async def list(self) -> Calls:
        """Return every record, including settled ones."""
        return await self._all("all")

    async def list_by_status(self, status: str) -> Calls:
        """Return the records of one status."""
        return await self._all(status)

    async def list_by_session(self, session_id: str) -> Calls:
        """Return the records of one session, including settled ones. Raises NotFound."""
        entry = await session_entry(self._rt, session_id)
        return await self._all("all", entry.stream)

    by_session = list_by_session

    async def find_expired(self) -> Calls:
        """Return the open calls whose deadline has passed; a worker expires them."""
        now = service_of(self._rt).now()
        open_calls = service_of(self._rt).calls.list(tenant_of(self._rt))
        return [
            call_json(self._rt, record) async for record in open_calls if is_overdue(record, now)
        ]

    async def _all(self, status: str, stream: str | None = None) -> Calls:
        calls = service_of(self._rt).calls
        records = calls.list(tenant_of(self._rt), status=status, stream=stream)
        in_order = sorted([record async for record in records], key=_position)
        return [call_json(self._rt, record) for record in in_order]

    async def complete(self, pending_id: str, result: str | Mapping[str, Any]) -> Call:
        """Submit the result of a call: text, or `{title?, output, metadata?}`."""
        outcome = await settle(self._rt, pending_id, submit_command(result))
        return call_json(self._rt, outcome.record)

    async def fail(self, pending_id: str, error: str) -> Call:
        """Submit the error of a call."""
        return call_json(self._rt, (await settle(self._rt, pending_id, SubmitError(error))).record)

    async def expire(self, pending_id: str) -> Call:
        """Expire a call whose deadline has passed. Raises Conflict if it has not."""
        record = (await settle(self._rt, pending_id, Expire())).record
        if record.is_open and not record.late:
            raise Conflict(
                f"{pending_id} is not past its deadline",
                code="NOT_EXPIRED",
                hint="cancel the call instead, or wait: a worker expires it in time",
            )
        return call_json(self._rt, record)

    async def cancel(self, pending_id: str, *, by: str | None = None) -> Call:
        """Cancel a call."""
        return call_json(self._rt, (await settle(self._rt, pending_id, CancelCall(by))).record)


def _position(record: PendingRecord) -> tuple[int, str, list[int], str]:
    """Return the place of a record in a list: by time, then in the order of a turn's calls."""
    numbers = [int(part) for part in record.part_id.lstrip("m").split(".") if part.isdecimal()]
    return record.time.created, record.session_id, numbers, record.id


def json_object(value: Any) -> dict[str, Any]:
    """Return a copy of the value if it is a JSON object. Raises Refused.

    A value that an encoder would only turn into JSON, as bytes or a set, is refused.
    """
    try:
        data = encode_value(value, "input")
        if problem := json_problem(value, "input"):
            raise _not_json(problem)
        return msgspec.json.decode(data, type=dict[str, Any])
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise _not_json(str(error)) from error


def _not_json(problem: str) -> Refused:
    return Refused(
        f"input is not a JSON object: {problem}",
        code="ARGS_INVALID",
        hint='pass a dict of JSON values, such as {"branch": "main"}',
    )


def submit_command(result: str | Mapping[str, Any]) -> SubmitResult:
    """Return the command that submits a result: text, or an object with no other keys."""
    if isinstance(result, str):
        return SubmitResult(result)
    if not isinstance(result, Mapping) or "output" not in result:
        raise Refused(
            "a result is text, or {title?, output, metadata?}",
            code="VALUE_INVALID",
            hint='pass the text, or {"output": …} with any JSON value',
        )
    if unknown := sorted(str(key) for key in result if key not in _RESULT_KEYS):
        raise Refused(
            f"unknown keys in result: {', '.join(unknown)}",
            code="VALUE_INVALID",
            hint="a result has title, output and metadata; put other data into metadata",
        )
    return SubmitResult(result["output"], result.get("title"), result.get("metadata"))
