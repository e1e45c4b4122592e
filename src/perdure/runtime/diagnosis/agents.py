"""Agents of this process and the calls that they are to run: what no longer fits after a deploy."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from perdure.core.json_values import UNKNOWN_ARGUMENT
from perdure.core.pending.record import PendingRecord
from perdure.errors import PerdureError, Refused
from perdure.findings.texts import line
from perdure.runtime.agents.agents import Agents
from perdure.runtime.agents.ready_agent import NOT_LISTED, ReadyAgent
from perdure.runtime.diagnosis.reasons import (
    AGENT_UNKNOWN,
    ARGS_INVALID,
    DENIED,
    OVERDUE,
    TOOL_MISSING,
    reason,
    stored_reason,
)
from perdure.runtime.tools.tool import Tool
from perdure.user_code import error_line

Args = Mapping[str, Any]

GRACE_MS: Final = 10_000  # by then a live worker has acted
_MOST_RESULTS: Final = 4_096  # of checks that are kept


def find_agent(agents: Mapping[str, ReadyAgent], name: str) -> ReadyAgent | PerdureError | None:
    """Return an agent, or why it is missing here; None where no agents are known at all."""
    agent = agents.get(name)
    if agent is not None or not agents:
        return agent
    text, missing = f"agent {name!r} is not known here", f"agent {line(name)}"
    return reason(AGENT_UNKNOWN, text, missing)


def call_problem(agents: Agents, record: PendingRecord, now: int) -> PerdureError | None:
    """Return why an open call does not run or continue with the agents here.

    An agent that is missing here is no reason: a call is decided anywhere, and a worker that has
    the agent continues it.
    """
    if not record.is_open:
        return None
    problem = code_problem(agents.by_name.get(record.agent), record)
    if problem is not None and problem.code == NOT_LISTED:
        problem = None  # nothing is known yet
    return stored_reason(record.problem) or problem or overdue(record, now)


def overdue(record: PendingRecord, now: int) -> PerdureError | None:
    """Return the reason OVERDUE for a call that a live worker would have expired."""
    is_late = record.due is not None and record.due <= now - GRACE_MS
    return reason(OVERDUE) if is_late else None


def code_problem(
    agent: ReadyAgent | PerdureError | None, record: PendingRecord
) -> PerdureError | None:
    """Return why an open call cannot run with an agent; its result or answer needs no tool."""
    if agent is None or isinstance(agent, PerdureError) or record.kind != "approval":
        return agent if isinstance(agent, PerdureError) else None
    return _STORED.problem(agent, record)


class _StoredArguments:
    """Results of checking the stored arguments of calls, which do not change.

    Lists would otherwise run the validators of a user's tools for every row, again and again.
    """

    def __init__(self) -> None:
        self._results: dict[str, tuple[ReadyAgent, PerdureError | None]] = {}  # by pending id

    def problem(self, agent: ReadyAgent, record: PendingRecord) -> PerdureError | None:
        """Return why a call cannot run with an agent."""
        kept = self._results.get(record.id)
        if kept is not None and kept[0] is agent:
            return kept[1]
        if len(self._results) >= _MOST_RESULTS:
            self._results.clear()
        problem = masked(run_problem(agent, record.tool, record.input), record.redact)
        self._results[record.id] = agent, problem
        return problem


_STORED: Final = _StoredArguments()


def masked(problem: PerdureError | None, redact: Sequence[str]) -> PerdureError | None:
    """Return a problem of a call with secret arguments: the text of a check may quote them."""
    if problem is None or problem.code != ARGS_INVALID or not redact:
        return problem
    items = [
        item
        if item["problem"].startswith(UNKNOWN_ARGUMENT)
        else {**item, "problem": "is not valid"}
        for item in problem.details.get("arguments", ())
    ]
    names = ", ".join(item["name"] for item in items)
    details = {**problem.details, "arguments": items}
    text = f"Invalid arguments: {names}"
    return Refused(text, code=ARGS_INVALID, hint=problem.hint, details=details)


def run_problem(agent: ReadyAgent, name: str, args: Args) -> PerdureError | None:
    """Return why a call cannot run with these arguments; None if it can, or if that is not known.

    The tools of MCP servers are not known before these were reached.
    """
    tool = agent.tool(name)
    if tool is None:
        missing = f"tool {line(name)} of agent {line(agent.name)}"
        text = f"agent {agent.name!r} has no tool {name!r} any more"
        return agent.problem or reason(TOOL_MISSING, text, missing)
    try:
        return args_problem(agent, tool, args)
    except PerdureError as error:
        return error
    except Exception as error:  # noqa: BLE001 - user code: a rule, or the schema of an MCP tool
        text = f"the arguments cannot be checked: {error_line(error)}"
        hint = "correct the tool and its rules, or deny the call"
        return Refused(text, code=ARGS_INVALID, hint=hint, details={"arguments": []})


def args_problem(agent: ReadyAgent, tool: Tool[..., Any], args: Args) -> PerdureError | None:
    """Return the refusal if the agent's rules deny the call: they outrank an approver.

    Raises Refused for arguments that do not fit.
    """
    rule = agent.permissions.denying_rule((tool.name,), tool.validate(args))
    if rule is None:
        return None
    return Refused(
        f"the permissions of agent {agent.name!r} deny this call to {tool.name} ({rule.text})",
        code=DENIED,
        hint="approve it with other arguments, or deny it",
    )
