"""Verdicts on the calls of a session, by the code that is here now."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.core.conversation.messages import RequestedCall
from perdure.core.driver.verdicts import Defer, Reject, RequireApproval, Start, Verdict, Wait
from perdure.core.log.events import ApprovalPolicy
from perdure.core.pending.answers import check_question
from perdure.core.session.calls import APPROVAL_MISMATCH, Call
from perdure.core.session.permissions import (
    NOT_TRACKED,
    RememberedPermission,
    permission_denial_text,
    remembered_denial_text,
)
from perdure.core.session.state import State
from perdure.errors import Refused
from perdure.ids import secret_id
from perdure.runtime.engine.contexts import tool_context
from perdure.runtime.engine.writer import LeasedWriter
from perdure.runtime.requests import ApprovalRequired, ToolRequest
from perdure.runtime.tools.builtin import wait_duration_ms
from perdure.runtime.tools.invoke import is_approval_required, render_prompt
from perdure.runtime.tools.tool import Tool
from perdure.user_code import bounded_text

logger = logging.getLogger("perdure")

CheckedArguments = tuple[Tool[..., Any], Mapping[str, Any], dict[str, Any]]  # tool, JSON, validated


async def judge(
    drive: LeasedWriter, call: RequestedCall, state: State, checked: dict[str, CheckedArguments]
) -> Verdict:
    """Return the verdict on a call that the model just requested; keep its validated arguments."""
    tool = drive.agent.tool(call.tool)
    if tool is None:
        names = ", ".join(drive.agent.tools) or "none"
        return Reject(f"There is no tool {call.tool!r}. Tools: {names}.")
    try:
        args = tool.validate(call.params)
    except Refused as error:
        return Reject(error.message)
    checked[call.id] = (tool, call.params, args)
    if tool.kind in ("question", "timer"):
        rule = drive.agent.permissions.denying_rule((tool.name,), args)
        if rule is not None:
            return Reject(permission_denial_text(tool.name, rule))
        try:
            return _wait_verdict(drive, tool, args)
        except Refused as error:
            return Reject(error.message)
    return await _judge_permission(drive, tool, call, args, state)


async def _judge_permission(
    drive: LeasedWriter,
    tool: Tool[..., Any],
    call: RequestedCall,
    args: dict[str, Any],
    state: State,
) -> Verdict:
    """Apply the agent's rules, then remembered decisions, then the tool's own policy.

    What is denied anywhere is denied. A remembered approval answers a rule that asks.
    """
    names = {tool.name, call.tool}
    judgment = drive.agent.permissions.judge(names, args)
    effect, rule = judgment if judgment is not None else (None, None)
    if effect == "deny" and rule is not None:
        return Reject(permission_denial_text(call.tool, rule))
    remembered = [item for item in state.permissions if item.is_match(names, call.params, args)]
    for permission in remembered:
        if permission.effect == "deny":
            return Reject(remembered_denial_text(call.tool, permission))
    authors = () if state.run is None else state.run.authors
    if effect == "allow" or any(_may_replace(item, tool, authors) for item in remembered):
        return start_verdict(drive, tool)
    if effect == "ask" or await _is_gated(drive, tool, call, args, state):
        return _ask_approver(drive, tool, call)
    return start_verdict(drive, tool)


async def _is_gated(
    drive: LeasedWriter,
    tool: Tool[..., Any],
    call: RequestedCall,
    args: dict[str, Any],
    state: State,
) -> bool:
    if isinstance(tool.approval.when, bool):
        return tool.approval.when
    return await is_approval_required(tool, tool_context(drive, state, call=call, args=args))


def is_perhaps_gated(drive: LeasedWriter, tool: Tool[..., Any], call: Call) -> bool:
    """Return True if a call whose records were lost may be asked about: it may have been gated."""
    if not drive.resources.is_tracked or tool.kind in ("question", "timer"):
        return False
    judgment = drive.agent.permissions.judge({tool.name, call.tool}, dict(call.params))
    if judgment is not None:
        return judgment[0] == "ask"
    return tool.approval.when is not False


def _wait_verdict(drive: LeasedWriter, tool: Tool[..., Any], args: dict[str, Any]) -> Wait:
    ids = (secret_id("p"), secret_id("e"))
    if tool.kind == "timer":
        return Wait(*ids, "timer", until=drive.resources.store.now() + wait_duration_ms(args))
    schema, choices = args.get("schema"), args.get("choices")
    check_question(schema, choices)
    prompt, deadline = render_prompt(tool, args), _approval_deadline(drive, None)
    return Wait(*ids, "question", prompt, deadline, schema=schema, choices=choices)


def request_verdict(
    drive: LeasedWriter, tool: Tool[..., Any], request: ToolRequest
) -> RequireApproval | Wait:
    """Return the verdict on a call whose tool asked a person while it ran."""
    ids, deadline = (secret_id("p"), secret_id("e")), _approval_deadline(drive, tool)
    prompt, policy = bounded_text(request.message), tool.approval.policy
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


def _ask_approver(
    drive: LeasedWriter, tool: Tool[..., Any], call: RequestedCall
) -> RequireApproval | Reject:
    if drive.resources.is_tracked:
        return approval_verdict(drive, tool, dict(call.params))
    logger.warning("%s: %s", call.tool, NOT_TRACKED)
    return Reject(NOT_TRACKED)


def approval_verdict(
    drive: LeasedWriter, tool: Tool[..., Any] | None, params: dict[str, Any]
) -> RequireApproval:
    """Require an approval; its deadline comes from the tool or the agent, if they have one."""
    if tool is None:
        return RequireApproval(secret_id("p"), secret_id("e"), "")
    expires_at = _approval_deadline(drive, tool)
    prompt, policy = render_prompt(tool, params), tool.approval.policy
    return RequireApproval(secret_id("p"), secret_id("e"), prompt, expires_at, policy)


def _approval_deadline(drive: LeasedWriter, tool: Tool[..., Any] | None) -> int | None:
    limit = drive.agent.input_timeout_ms
    if tool is not None and tool.approval.timeout is not None:
        limit = tool.approval.timeout_ms
    return None if limit is None else drive.resources.store.now() + limit


def start_verdict(
    drive: LeasedWriter, tool: Tool[..., Any], *, is_open: bool = False
) -> Start | Defer | Wait:
    """Return the verdict that starts a call now; a call of an external tool only waits.

    `is_open`: the call has a pending id, because its tool was deferred when it first started. It
    keeps the id, and only an intent lets a call wait under the same id again.
    """
    if not tool.deferred:
        return Start(secret_id("e"))
    limit = tool.timeout_ms
    expires_at = None if limit is None else drive.resources.store.now() + limit
    if tool.external and not is_open:
        return Wait(secret_id("p"), secret_id("e"), "tool", until=expires_at)
    return Defer(secret_id("p"), secret_id("e"), expires_at)


def recheck(
    drive: LeasedWriter, call: Call, checked: dict[str, CheckedArguments]
) -> Start | Defer | Wait | Reject | Refused:
    """Return the verdict on a recorded call with the code that is here now; see `judge`."""
    if call.problem == APPROVAL_MISMATCH:
        return Reject(
            "The approval was given for other arguments than those of this call; it was not run."
        )
    tool = drive.agent.tool(call.tool)
    if tool is None:
        return Refused(
            f"agent {drive.agent.name!r} has no tool {call.tool!r} here",
            code="TOOL_MISSING",
            hint="start a worker that has it, or cancel the session",
        )
    try:
        checked[call.id] = (tool, call.params, tool.validate(call.params))
    except Refused as error:
        return error
    return start_verdict(drive, tool, is_open=call.pending_id is not None)


def _may_replace(
    permission: RememberedPermission, tool: Tool[..., Any], authors: Sequence[str]
) -> bool:
    """Return True if a remembered approval replaces a new one under the policy of a tool."""
    policy = tool.approval.policy
    if policy is None:
        return True
    if policy.min_approvals > 1 or (policy.not_by_starter and permission.by in authors):
        return False
    # A rule that was remembered for another tool does not say who may approve this one.
    return permission.tool in (tool.name, *tool.aliases)
