"""Whether a decision or a result can be taken at all: by its form, and by the code that is here."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import msgspec

from holdfast.core.pending.commands import Approve, Command, SubmitResult
from holdfast.core.pending.record import PendingRecord
from holdfast.errors import Refused
from holdfast.runtime.agents import Agents, ReadyAgent
from holdfast.runtime.content import check_text
from holdfast.runtime.invoke import accepts_result
from holdfast.runtime.tools import Tool


async def inspect(agents: Agents, record: PendingRecord, command: Command) -> None:
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
