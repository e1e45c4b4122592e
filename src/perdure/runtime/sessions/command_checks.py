"""Checks of a command before it settles a pending call: its values, and the code at hand."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final, get_args

import msgspec

from perdure.core.pending.commands import Approve, Command, Respond, SubmitResult
from perdure.core.pending.record import TOOL_MISSING, PendingRecord
from perdure.core.pending.settlement import RESULT_INVALID, submitted_result
from perdure.core.roles import ROLES
from perdure.errors import Refused
from perdure.runtime.agents.agents import Agents
from perdure.runtime.agents.ready_agent import ReadyAgent
from perdure.runtime.records.content import check_json, check_size, check_text
from perdure.runtime.tools.invoke import is_valid_result
from perdure.runtime.tools.tool import Tool
from perdure.runtime.views import HINTS

_FIELDS: Final = {command_type: fields(command_type) for command_type in get_args(Command)}


def checked_commands(commands: Mapping[str, Command]) -> dict[str, Command]:
    """Return commands with their outputs as JSON. Raises Refused for a value of a wrong type."""
    return {pending_id: checked_command(command) for pending_id, command in commands.items()}


def checked_command(command: Command) -> Command:
    """Return the command with its output as JSON. Raises Refused for a value of a wrong type."""
    for field in _FIELDS[type(command)]:
        name, value = field.name, getattr(command, field.name)
        if value is None and field.default is None:
            continue
        if name in ("args", "metadata"):
            _check_object(name, value)
        elif name in ("remember", "all_tools") and isinstance(value, bool):
            continue
        elif name == "output" and isinstance(command, Respond | SubmitResult):
            _check_json(name, value)
        elif name == "role":
            _check_role(value)
        else:
            check_text(name, value)
    if isinstance(command, SubmitResult) and not isinstance(command.output, str):
        return replace(command, output=msgspec.json.decode(check_json("output", command.output)))
    return command


def _check_object(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise Refused(
            f"{name} must be an object, not {value!r}",
            code="VALUE_INVALID",
            hint=f'write {name} as in {{"key": "value"}}',
        )
    _check_json(name, value)


def _check_json(name: str, value: Any) -> None:
    if isinstance(value, str):
        check_text(name, value)
        return
    check_size(check_json(name, value), f"the {name}")


def _check_role(role: Any) -> None:
    if role not in ROLES:
        raise Refused(
            f"{role!r} is not a role", code="ROLE_INVALID", hint=f"one of: {', '.join(ROLES)}"
        )


async def check_acceptable(agents: Agents, record: PendingRecord, command: Command) -> bool:
    """Raise Refused for a command that could not take effect with the code of this process.

    Where the agent or its tool is not known, every command is accepted, and False is returned:
    the worker that has it decides.
    """
    agent = agents.find(record.agent)
    if agent is None:
        return False
    if isinstance(command, Approve):
        agent = await agents.refresh_tools(agent)
    tool = agent.tool(record.tool)
    if tool is None and agent.problem is not None:
        return False
    match command:
        case Approve() if tool is None:
            raise Refused(
                f"agent {agent.name!r} has no tool {record.tool!r} any more",
                code=TOOL_MISSING,
                hint=HINTS[TOOL_MISSING],
            )
        case Approve() if tool is not None:
            _check_approved(agent, tool, {**record.input, **(command.args or {})})
        case SubmitResult() if tool is not None:
            if not await is_valid_result(tool, submitted_result(record, command)):
                raise Refused(
                    RESULT_INVALID,
                    code="RESULT_INVALID",
                    hint=f"validate_result of {record.tool} did not accept it; submit another",
                )
        case _:
            pass
    return tool is not None


def with_problem(agents: Agents, record: PendingRecord) -> PendingRecord:
    """Return the record with the problem TOOL_MISSING if its call could not run here."""
    if record.kind != "approval" or not record.is_open or record.problem is not None:
        return record
    agent = agents.find(record.agent)
    if agent is None or agent.problem is not None or agent.tool(record.tool) is not None:
        return record
    return msgspec.structs.replace(record, problem=TOOL_MISSING)


def _check_approved(agent: ReadyAgent, tool: Tool[..., Any], args: dict[str, Any]) -> None:
    """Raise Refused if the agent's rules deny the approved call: they outrank an approver."""
    rule = agent.permissions.denying_rule((tool.name,), tool.validate(args))
    if rule is not None:
        raise Refused(
            f"the permissions of agent {agent.name!r} deny this call to {tool.name} ({rule.text})",
            code="DENIED",
            hint="approve it with other arguments, or deny it",
        )
