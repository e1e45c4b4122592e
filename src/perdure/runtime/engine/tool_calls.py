"""Tool calls of a drive: verdicts on new calls, and the run of a call whose intent is recorded."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from perdure.core.conversation.messages import RequestedCall
from perdure.core.driver.verdicts import Defer, Reject, RequireApproval, Start, Verdict, Wait
from perdure.core.log import events
from perdure.core.log.events import ApprovalPolicy
from perdure.core.pending.answers import check_question
from perdure.core.pending.record import PendingRecord
from perdure.core.session.calls import APPROVAL_MISMATCH, Call
from perdure.core.session.naming import session_label
from perdure.core.session.permissions import (
    NOT_TRACKED,
    RememberedPermission,
    permission_denial_text,
    remembered_denial_text,
)
from perdure.core.session.state import State
from perdure.errors import NotFound, PerdureError, Refused
from perdure.runtime.agents.agents import ReadyAgent
from perdure.runtime.engine.in_flight import StartReturned, ToolAsked, ToolReturned
from perdure.runtime.ids import secret_id
from perdure.runtime.models.base import Delta
from perdure.runtime.probes import ToolRun, notify
from perdure.runtime.records.content import check_size, stored_content
from perdure.runtime.requests import ApprovalRequired, ToolRequest, raised_request
from perdure.runtime.resources import Resources
from perdure.runtime.thread_calls import callable_from_threads
from perdure.runtime.tools.builtin import wait_duration_ms
from perdure.runtime.tools.invoke import (
    invoke,
    is_approval_required,
    is_valid_result,
    render_prompt,
)
from perdure.runtime.tools.outputs import Deferred, parse_deferred, render_result
from perdure.runtime.tools.tool import Tool
from perdure.runtime.user_code import bounded_text, error_line, loggable
from perdure.runtime.values import Context, Decision, PendingCall
from perdure.runtime.views import instant


class CallContext(Struct, frozen=True):
    """Session and agent of a drive, and the context that its tools get."""

    resources: Resources
    agent: ReadyAgent
    tenant: str
    session_id: str

    def tool_context(
        self,
        state: State,
        *,
        call: RequestedCall | Call | None = None,
        args: dict[str, Any] | None = None,
        pending: PendingCall | None = None,
    ) -> Context[Any]:
        """Return the context of a tool, predicate or instruction."""
        running = call if isinstance(call, Call) else None
        return Context(
            deps=self.resources.deps.value,
            session_id=self.session_id,
            tenant=self.tenant,
            agent=self.agent.name,
            metadata=dict(state.metadata),
            tool=call.tool if call is not None else "",
            args=args or {},
            call_id=call.id if call is not None else "",
            effect_id=running.effect_id if running is not None else "",
            attempt=running.attempt - running.parked_attempts if running is not None else 1,
            decision=self._decision(running),
            pending=pending,
            decisions=_raised_decisions(running),
            answers=() if running is None else running.answers,
            _progress=None if running is None else self._progress(running, state.turn),
        )

    def _decision(self, call: Call | None) -> Decision | None:
        if call is None or call.decision is None:
            return None
        return _public_decision(call.decision, call.decided_at)

    def _progress(self, call: Call, turn: int) -> Callable[[str, float | None], Awaitable[None]]:
        async def report(message: str, percent: float | None) -> None:
            text = message if percent is None else f"{message} ({percent:g} %)"
            self.resources.bus.publish_alone(
                self.tenant, Delta(self.session_id, turn, "progress", text, call.id)
            )
            if call.pending_id is not None:
                progress = {
                    "message": message,
                    "percent": percent,
                    "at": self.resources.store.now(),
                }
                await self.resources.pending_inbox.update(
                    call.pending_id, lambda record: replace(record, progress=progress)
                )

        return callable_from_threads(report)


def _raised_decisions(call: Call | None) -> tuple[Decision, ...]:
    if call is None:
        return ()
    return tuple(_public_decision(event, at) for event, at in call.raised_decisions)


def _public_decision(event: events.Decision, at: int) -> Decision:
    details = (event.args, event.reason, event.note, event.remember)
    return Decision(event.kind, event.by, event.via, instant(at), *details)


logger = logging.getLogger("perdure")

_NOT_JSON: Final = (
    "tool %s of %s returned a value that is not JSON (%s), so that the model sees only its text; "
    "return text, numbers, dicts, lists, a dataclass or a pydantic model"
)
CheckedArguments = tuple[Tool[..., Any], Mapping[str, Any], dict[str, Any]]  # tool, JSON, validated


class Verdicts(Struct, frozen=True):
    """Verdicts on the calls of one session, by the code that is here now."""

    context: CallContext
    checked: dict[str, CheckedArguments] = {}  # by call id

    def arguments(self, tool: Tool[..., Any], call: Call) -> dict[str, Any]:
        """Return the validated arguments of a call. Raises Refused."""
        checked = self.checked.pop(call.id, None)
        if checked is not None and checked[0] is tool and checked[1] == call.params:
            return checked[2]  # validated for the verdict
        return tool.validate(call.params)

    async def judge(self, call: RequestedCall, state: State) -> Verdict:
        """Return the verdict on a call that the model just requested."""
        tool = self.context.agent.tool(call.tool)
        if tool is None:
            names = ", ".join(self.context.agent.tools) or "none"
            return Reject(f"There is no tool {call.tool!r}. Tools: {names}.")
        try:
            args = tool.validate(call.params)
        except Refused as error:
            return Reject(error.message)
        self.checked[call.id] = (tool, call.params, args)
        ctx = self.context.tool_context(state, call=call, args=args)
        if tool.kind in ("question", "timer"):
            rule = self.context.agent.permissions.denying_rule((tool.name,), args)
            if rule is not None:
                return Reject(permission_denial_text(tool.name, rule))
            try:
                return self._wait_verdict(tool, args)
            except Refused as error:
                return Reject(error.message)
        return await self._judge_permission(tool, call, ctx, state)

    async def _judge_permission(
        self, tool: Tool[..., Any], call: RequestedCall, ctx: Context[Any], state: State
    ) -> Verdict:
        """Apply the agent's rules, then remembered decisions, then the tool's own policy.

        What is denied anywhere is denied. A remembered approval answers a rule that asks.
        """
        names = {tool.name, call.tool}
        judgment = self.context.agent.permissions.judge(names, ctx.args)
        effect, rule = judgment if judgment is not None else (None, None)
        if effect == "deny" and rule is not None:
            return Reject(permission_denial_text(call.tool, rule))
        remembered = [
            item for item in state.permissions if item.is_match(names, call.params, ctx.args)
        ]
        for permission in remembered:
            if permission.effect == "deny":
                return Reject(remembered_denial_text(call.tool, permission))
        authors = () if state.run is None else state.run.authors
        if effect == "allow" or any(_may_replace(item, tool, authors) for item in remembered):
            return self.start_verdict(tool)
        if effect == "ask" or await is_approval_required(tool, ctx):
            return self._ask_approver(tool, call)
        return self.start_verdict(tool)

    def _wait_verdict(self, tool: Tool[..., Any], args: dict[str, Any]) -> Wait:
        ids = (secret_id("p"), secret_id("e"))
        if tool.kind == "timer":
            now = self.context.resources.store.now()
            return Wait(*ids, "timer", until=now + wait_duration_ms(args))
        schema, choices = args.get("schema"), args.get("choices")
        check_question(schema, choices)
        return Wait(
            *ids,
            "question",
            render_prompt(tool, args),
            self._approval_deadline(None),
            schema=schema,
            choices=choices,
        )

    def request_verdict(self, tool: Tool[..., Any], request: ToolRequest) -> RequireApproval | Wait:
        """Return the verdict on a call whose tool asked a person while it ran."""
        ids, deadline = (secret_id("p"), secret_id("e")), self._approval_deadline(tool)
        prompt, policy = bounded_text(request.message), tool.approval_policy
        if isinstance(request, ApprovalRequired):
            return RequireApproval(*ids, prompt, deadline, policy, request.request_details)
        approvers = () if policy is None else policy.approvers
        return Wait(
            *ids,
            "question",
            prompt,
            deadline,
            schema=request.schema,
            choices=request.choices,
            policy=ApprovalPolicy(approvers=approvers) if approvers else None,
        )

    def _ask_approver(self, tool: Tool[..., Any], call: RequestedCall) -> RequireApproval | Reject:
        if self.context.resources.is_tracked:
            return self.approval_verdict(tool, dict(call.params))
        logger.warning("%s: %s", call.tool, NOT_TRACKED)
        return Reject(NOT_TRACKED)

    def approval_verdict(
        self, tool: Tool[..., Any] | None, params: dict[str, Any]
    ) -> RequireApproval:
        """Require an approval; its deadline comes from the tool or the agent, if they have one."""
        if tool is None:
            return RequireApproval(secret_id("p"), secret_id("e"), "")
        expires_at = self._approval_deadline(tool)
        prompt, policy = render_prompt(tool, params), tool.approval_policy
        return RequireApproval(secret_id("p"), secret_id("e"), prompt, expires_at, policy)

    def _approval_deadline(self, tool: Tool[..., Any] | None) -> int | None:
        limit = self.context.agent.input_timeout_ms
        if tool is not None and tool.approval_timeout is not None:
            limit = tool.approval_timeout_ms
        return None if limit is None else self.context.resources.store.now() + limit

    def start_verdict(self, tool: Tool[..., Any]) -> Start | Defer:
        """Return the verdict that starts a call now."""
        if not tool.deferred:
            return Start(secret_id("e"))
        limit = tool.timeout_ms
        expires_at = None if limit is None else self.context.resources.store.now() + limit
        return Defer(secret_id("p"), secret_id("e"), expires_at)

    def recheck(self, call: Call) -> Start | Defer | Reject | Refused:
        """Return the verdict on a recorded call with the code that is here now."""
        if call.problem == APPROVAL_MISMATCH:
            return Reject(
                "The approval was given for other arguments than those of this call; "
                "it was not run."
            )
        tool = self.context.agent.tool(call.tool)
        if tool is None:
            return Refused(
                f"agent {self.context.agent.name!r} has no tool {call.tool!r} here",
                code="TOOL_MISSING",
                hint="start a worker that has it, or cancel the session",
            )
        try:
            tool.validate(call.params)
        except Refused as error:
            return error
        return self.start_verdict(tool)


def _may_replace(
    permission: RememberedPermission, tool: Tool[..., Any], authors: Sequence[str]
) -> bool:
    """Return True if a remembered approval replaces a new one under the policy of a tool."""
    policy = tool.approval_policy
    if policy is None:
        return True
    if policy.min_approvals > 1 or (policy.not_by_starter and permission.by in authors):
        return False
    # A rule that was remembered for another tool does not say who may approve this one.
    return permission.tool in (tool.name, *tool.aliases)


class _Asked(Struct, frozen=True):
    """A request that a tool raised, in place of its value."""

    request: ToolRequest


class ToolCalls(Struct, frozen=True):
    """Tool calls of one session; each may be cancelled at any await without harm."""

    context: CallContext
    verdicts: Verdicts

    async def run(
        self, call: Call, state: State, opened: PendingRecord | None = None
    ) -> ToolReturned | StartReturned | ToolAsked:
        """Run a call whose intent is recorded. Never raises: a failure is an outcome.

        `opened` is the record of a deferred call, if it is known and need not be read.
        """
        tool = self.context.agent.tool(call.tool)
        if tool is None:  # it existed when this drive recorded the intent
            return ToolReturned(call.id, f"There is no tool {call.tool!r}.", is_error=True)
        try:
            if tool.deferred and call.pending_id is not None:
                record = opened or await self.context.resources.pending_inbox.pending_record(
                    call.pending_id
                )
                return await self._start_deferred(tool, call, state, record)
            ctx = self.context.tool_context(
                state, call=call, args=self.verdicts.arguments(tool, call)
            )
            value = await self._invoke(tool, call, ctx)
            if isinstance(value, _Asked):
                return self._ask(tool, call, value.request)
            return ToolReturned(call.id, await self._render(tool, value))
        except PerdureError as error:
            return ToolReturned(call.id, bounded_text(error.message), is_error=True)
        except Exception as error:
            line, text = error_line(error), "tool %s failed (call %s): %.1000s"
            logger.exception(text, call.tool, call.id, line, exc_info=loggable(error))
            return ToolReturned(call.id, line, is_error=True)

    async def invalid_results(self, calls: Sequence[Call]) -> list[Call]:
        """Return the calls whose submitted results their tools do not accept."""
        invalid = []
        for call in calls:
            tool = self.context.agent.tool(call.tool)
            if tool is None or tool.validate_result is None or call.unchecked is None:
                continue
            with suppress(NotFound):  # removed since: settled calls are kept for days
                inbox = self.context.resources.pending_inbox
                result = (await inbox.pending_record(call.unchecked)).result
                if result is not None and not is_valid_result(tool, result):
                    invalid.append(call)
        return invalid

    async def _start_deferred(
        self, tool: Tool[..., Any], call: Call, state: State, record: PendingRecord
    ) -> StartReturned | ToolAsked | ToolReturned:
        resources = self.context.resources
        own = await resources.outbox.own_secrets(record.hooks) if record.hooks else ()
        pending = resources.pending_call(record, inside=True, own=own)
        args = self.verdicts.arguments(tool, call)
        ctx = self.context.tool_context(state, call=call, args=args, pending=pending)
        value = await self._invoke(tool, call, ctx)
        if isinstance(value, _Asked):
            return self._ask(tool, call, value.request)
        deferred = parse_deferred(value, record.id)
        progress = events.Progress(
            pending_id=record.id,
            call_id=call.id,
            returned=True,
            external_ref=deferred.external_ref,
            output=deferred.output,
            estimated_duration=deferred.estimated_duration_ms,
            expires_at=_deferred_deadline(deferred, resources.store.now()),
        )
        return StartReturned(call.id, progress)

    def _ask(
        self, tool: Tool[..., Any], call: Call, request: ToolRequest
    ) -> ToolAsked | ToolReturned:
        if not self.context.resources.is_tracked:
            logger.warning("%s: %s", call.tool, NOT_TRACKED)
            return ToolReturned(call.id, NOT_TRACKED, is_error=True)
        return ToolAsked(call.id, self.verdicts.request_verdict(tool, request))

    async def _invoke(self, tool: Tool[..., Any], call: Call, ctx: Context[Any]) -> Any:
        may_repeat = tool.crash_policy != "tell"
        replies = len(call.answers) + len(call.raised_decisions)
        run = (call.turn, call.id, call.effect_id, tool.name, may_repeat, replies)
        notify(ToolRun, ctx.tenant, ctx.session_id, *run)
        telemetry = self.context.resources.telemetry
        with telemetry.tool(tool, call.id, ctx.session_id, ctx.args) as record:
            try:
                value = await invoke(tool, ctx)
            except (PerdureError, BaseExceptionGroup) as error:
                request = raised_request(error)
                if request is None:
                    raise
                return _Asked(request)  # inside the span: it is not a failure
            record(value)
        return value

    async def _render(self, tool: Tool[..., Any], value: Any) -> events.Content:
        unknown: set[str] = set()
        content = render_result(value, unknown)
        if unknown:
            label = session_label(self.context.tenant, self.context.session_id)
            logger.warning(_NOT_JSON, tool.name, label, ", ".join(sorted(unknown)))
        if isinstance(content, str):
            check_size(content, "the tool's result")
            return content
        return await stored_content(self.context.resources.store, content)


def _deferred_deadline(deferred: Deferred, now: int) -> int | None:
    """Return the deadline that a start set; None: the tool's own stays; 0: there is none."""
    if deferred.timeout_ms is ...:
        return None
    return 0 if not deferred.timeout_ms else now + deferred.timeout_ms
