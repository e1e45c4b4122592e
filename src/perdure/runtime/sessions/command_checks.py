"""Checks of a command before it settles a pending call: its values, and the code at hand."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final, get_args

import msgspec

from perdure.core.pending.commands import Approve, Command, Respond, SubmitResult
from perdure.core.pending.record import PendingRecord
from perdure.core.pending.settlement import RESULT_INVALID, submitted_result
from perdure.core.roles import ROLES
from perdure.errors import Refused
from perdure.runtime.agents.agents import Agents
from perdure.runtime.diagnosis.agents import masked, run_problem
from perdure.runtime.records.content import check_json, check_size, check_text
from perdure.runtime.tools.invoke import is_valid_result

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
        case Approve():
            args = {**record.input, **(command.args or {})}
            problem = masked(run_problem(agent, record.tool, args), record.redact)
            if problem is not None:
                raise problem
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
