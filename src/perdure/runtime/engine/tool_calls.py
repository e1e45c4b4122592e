"""Tool calls of a drive: the run of a call whose intent is recorded, and submitted results.

Each may be cancelled at any await without harm.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Struct

from perdure.core.driver.verdicts import Wait
from perdure.core.log import events
from perdure.core.pending.record import PendingRecord
from perdure.core.session.calls import Call
from perdure.core.session.naming import session_label
from perdure.core.session.permissions import NOT_TRACKED
from perdure.core.session.state import State
from perdure.errors import NotFound, PerdureError, ToolError
from perdure.ids import secret_id
from perdure.runtime.agents.delegation import ChildAnswer, ChildWait
from perdure.runtime.engine.contexts import tool_context
from perdure.runtime.engine.in_flight import StartReturned, ToolAsked, ToolReturned
from perdure.runtime.engine.verdicts import CheckedArguments, request_verdict
from perdure.runtime.engine.writer import LeasedWriter
from perdure.runtime.probes import ToolRun, notify
from perdure.runtime.records.content import check_size, stored_content
from perdure.runtime.requests import ToolRequest, raised_request
from perdure.runtime.tools.invoke import invoke, is_valid_result
from perdure.runtime.tools.outputs import Deferred, parse_deferred, render_result
from perdure.runtime.tools.tool import Tool, signature_of
from perdure.runtime.values import Context
from perdure.store.base import Lost
from perdure.user_code import bounded_text, error_line, loggable
from perdure.views.calls import PendingCall

logger = logging.getLogger("perdure")

_NOT_JSON: Final = (
    "tool %s of %s returned a value that is not JSON (%s), so that the model sees only its text; "
    "return text, numbers, dicts, lists, a dataclass or a pydantic model"
)


class _LeaseEnded(Exception):
    """The lease ended before a tool could start: another worker may repeat its call."""


class _Asked(Struct, frozen=True):
    """A request that a tool raised, in place of its value."""

    request: ToolRequest


async def run_call(
    drive: LeasedWriter, call: Call, state: State, checked: CheckedArguments | None
) -> ToolReturned | StartReturned | ToolAsked:
    """Run a call whose intent is recorded. A failure is an outcome; raises only Lost.

    `checked` are the arguments that were validated for the verdict, if this drive gave it.
    """
    tool = drive.agent.tool(call.tool)
    try:
        if tool is None:  # it existed when this drive recorded the intent
            raise ToolError(f"There is no tool {call.tool!r}.")
        record = await _deferred_record(drive, tool, call)
        args = _arguments(tool, call, checked)
        signature = signature_of(tool)
        is_seen = record is not None and (signature is None or signature.takes_call)
        pending = await _own_call(drive, record) if record is not None and is_seen else None
        ctx = tool_context(drive, state, call=call, args=args, pending=pending)
        value = await _invoke(drive, tool, call, ctx)
        if isinstance(value, _Asked):
            return _ask(drive, tool, call, value.request)
        now = drive.resources.store.now()
        if record is not None:
            return _start_returned(call, record, value, now)
        if isinstance(value, ChildWait | ChildAnswer):
            return _child_outcome(call, value, now)
        return ToolReturned(call.id, await _render(drive, tool, value))
    except _LeaseEnded as error:
        raise Lost("the lease expired before the tool could start") from error
    except PerdureError as error:
        return ToolReturned(call.id, bounded_text(error.message), is_error=True)
    except Exception as error:
        line, text = error_line(error), "tool %s failed (call %s): %.1000s"
        logger.exception(text, call.tool, call.id, line, exc_info=loggable(error))
        return ToolReturned(call.id, line, is_error=True)


def _child_outcome(
    call: Call, value: ChildWait | ChildAnswer, now: int
) -> ToolAsked | ToolReturned:
    """Return the outcome of a call that waits for a background agent, or has its answer."""
    if isinstance(value, ChildAnswer):
        text = msgspec.json.encode(value.answer).decode()
        return ToolReturned(call.id, text, mail=value.mail)
    ids, until = (secret_id("p"), secret_id("e")), now + value.timeout_ms
    wait = Wait(*ids, "child", until=until, details=value.details, mail=value.mail)
    return ToolAsked(call.id, wait)


def _arguments(
    tool: Tool[..., Any], call: Call, checked: CheckedArguments | None
) -> dict[str, Any]:
    """Return the validated arguments of a call. Raises Refused."""
    if checked is not None and checked[0] is tool and checked[1] == call.params:
        return checked[2]
    return tool.validate(call.params)


async def _deferred_record(
    drive: LeasedWriter, tool: Tool[..., Any], call: Call
) -> PendingRecord | None:
    """Return the record under which the result of a deferred call is submitted."""
    if not tool.deferred or call.pending_id is None:
        return None
    written = drive.pending_record(call.pending_id)
    return written or await drive.resources.pending_inbox.pending_record(call.pending_id)


async def _own_call(drive: LeasedWriter, record: PendingRecord) -> PendingCall:
    """Return the public value of a call, as its own tool sees it."""
    own = await drive.resources.outbox.own_secrets(record.hooks) if record.hooks else ()
    return drive.resources.pending_call(record, inside=True, own=own)


def _start_returned(call: Call, record: PendingRecord, value: Any, now: int) -> StartReturned:
    deferred = parse_deferred(value, record.id)
    progress = events.Progress(
        pending_id=record.id,
        call_id=call.id,
        returned=True,
        external_ref=deferred.external_ref,
        output=deferred.output,
        estimated_duration=deferred.estimated_duration_ms,
        expires_at=_deferred_deadline(deferred, now),
    )
    return StartReturned(call.id, progress)


def _ask(
    drive: LeasedWriter, tool: Tool[..., Any], call: Call, request: ToolRequest
) -> ToolAsked | ToolReturned:
    if not drive.resources.is_tracked:
        logger.warning("%s: %s", call.tool, NOT_TRACKED)
        return ToolReturned(call.id, NOT_TRACKED, is_error=True)
    return ToolAsked(call.id, request_verdict(drive, tool, request))


async def _invoke(drive: LeasedWriter, tool: Tool[..., Any], call: Call, ctx: Context[Any]) -> Any:
    if tool.external:  # it was a deferred tool when the call first started
        return None
    may_repeat = tool.crash_policy != "tell"
    replies = len(call.answers) + len(call.raised_decisions)
    run = (call.turn, call.id, call.effect_id, tool.name, may_repeat, replies)
    _check_lease(drive)
    notify(ToolRun, ctx.tenant, ctx.session_id, *run)
    telemetry = drive.resources.telemetry
    with telemetry.tool(tool, call.id, ctx.session_id, ctx.args) as record:
        try:
            value = await invoke(tool, ctx, before=partial(_check_lease, drive))
        except (PerdureError, BaseExceptionGroup) as error:
            request = raised_request(error)
            if request is None:
                raise
            return _Asked(request)  # inside the span: it is not a failure
        record(value)
    return value


def _check_lease(drive: LeasedWriter) -> None:
    """Raise unless the lease is valid: a process may have been frozen since it read or waited."""
    if not drive.is_valid(drive.lease):
        raise _LeaseEnded


async def _render(drive: LeasedWriter, tool: Tool[..., Any], value: Any) -> events.Content:
    unknown: set[str] = set()
    content = render_result(value, unknown)
    if unknown:
        label = session_label(drive.entry.record.tenant, drive.entry.record.id)
        logger.warning(_NOT_JSON, tool.name, label, ", ".join(sorted(unknown)))
    if isinstance(content, str):
        check_size(content, "the tool's result")
        return content
    return await stored_content(drive.resources.store, content)


def _deferred_deadline(deferred: Deferred, now: int) -> int | None:
    """Return the deadline that a start set; None: the tool's own stays; 0: there is none."""
    if deferred.timeout_ms is ...:
        return None
    return 0 if not deferred.timeout_ms else now + deferred.timeout_ms


async def invalid_results(drive: LeasedWriter, calls: Sequence[Call]) -> list[Call]:
    """Return the calls whose submitted results their tools do not accept."""
    invalid = []
    for call in calls:
        tool = drive.agent.tool(call.tool)
        if tool is None or tool.validate_result is None or call.unchecked is None:
            continue
        with suppress(NotFound):  # removed since: settled calls are kept for days
            inbox = drive.resources.pending_inbox
            result = (await inbox.pending_record(call.unchecked)).result
            if result is not None and not await is_valid_result(tool, result):
                invalid.append(call)
    return invalid
