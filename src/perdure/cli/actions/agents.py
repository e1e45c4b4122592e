"""The agents that are here, and whether everything that waits could run with them."""

from collections.abc import AsyncIterator
from typing import Any

from perdure.app import Runtime, service_of, tenant_of
from perdure.cli.open import opened
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, call_text, line
from perdure.core.session.calls import CallStatus
from perdure.errors import PerdureError, Refused
from perdure.runtime.agents.agents import ReadyAgent
from perdure.runtime.records.log import Log
from perdure.runtime.tools.tool import Tool


def list_agents(settings: Settings) -> int:
    """Name, model and tools, with what is special about each."""

    async def main(runtime: Runtime) -> None:
        agents = service_of(runtime).agents
        found = [_agent_json(await agents.listed(agent)) for agent in agents.all()]
        terminal = Terminal(settings)
        terminal.either({"agents": found}, lambda: _agent_lines(terminal, found))

    opened(settings, main, need="any")
    return 0


def _agent_json(agent: ReadyAgent) -> dict[str, Any]:
    return {
        "name": agent.name,
        "model": agent.model.name,
        "description": agent.agent.description,
        "tools": [{"name": t.name, "flags": _flags(t)} for t in agent.tools.values()],
        "problem": None if agent.problem is None else agent.problem.to_json(),
    }


def _flags(tool: Tool[..., Any]) -> list[str]:
    gated = tool.requires_approval is not False
    asks = "approval" if tool.requires_approval is True else "approval?"
    chosen = (asks, gated), ("deferred", tool.deferred), ("idempotent", tool.idempotent)
    return [name for name, is_set in chosen if is_set]


def _agent_lines(terminal: Terminal, found: list[dict[str, Any]]) -> None:
    if not found:
        terminal.say("no agents here")
    for agent in found:
        terminal.say(f"{line(agent['name'])}  {line(agent['model'])}", bold=True)
        if agent["description"]:
            terminal.say(f"  {line(agent['description'], 160)}")
        for tool in agent["tools"]:
            flags = f"  [{', '.join(tool['flags'])}]" if tool["flags"] else ""
            terminal.say(f"  {line(tool['name'])}{flags}")
        if agent["problem"]:
            terminal.say(f"  ✗ {line(agent['problem']['error'], 200)}")


def check(settings: Settings) -> int:
    """Every waiting call against the agents here: 1 if one could not run."""

    async def main(runtime: Runtime) -> int:
        wrong = [one async for one in _waiting(runtime)] + [one async for one in _stuck(runtime)]
        terminal = Terminal(settings)
        answer = {"ok": not wrong, "problems": wrong, "count": len(wrong)}
        terminal.either(answer, lambda: _problem_lines(terminal, wrong))
        return 1 if wrong else 0

    return opened(settings, main, need="any")


def _problem_lines(terminal: Terminal, wrong: list[dict[str, Any]]) -> None:
    for one in wrong:
        call = call_text(one["tool"], one["input"])
        place = f"{line(one['sessionID'])}: {call}"
        terminal.say(f"✗ {place}  {one['code']}: {line(one['error'], 200)}")
    if not wrong:
        terminal.say("✓ everything that waits could run with the agents here")


async def _waiting(runtime: Runtime) -> AsyncIterator[dict[str, Any]]:
    service = service_of(runtime)
    async for record in service.pending(tenant_of(runtime)):
        agent = service.agents.find(record.agent)
        if agent is None:
            problem: PerdureError | None = _unknown(record.agent)
        elif record.kind == "approval":  # a result needs no tool to be accepted
            problem = _unfit(await service.agents.listed(agent), record.tool, record.input)
        else:
            continue
        if problem is not None:
            yield _told(record.session_id, record.tool, record.shown.input, problem, record.id)


async def _stuck(runtime: Runtime) -> AsyncIterator[dict[str, Any]]:
    """Calls that were approved where the code was not: they wait for a worker that has it."""
    service = service_of(runtime)
    async for known in service.sessions(tenant_of(runtime)):
        record = known.record
        if record.is_over or (record.problem is None and record.state == "waiting"):
            continue
        agent = service.agents.find(record.agent)
        log = Log(service.desk.store, known.stream)
        await log.catch_up()
        for call in log.state.open_calls:
            if call.status not in (CallStatus.APPROVED, CallStatus.NEW):
                continue
            problem = _unknown(record.agent) if agent is None else None
            if agent is not None:
                listed = await service.agents.listed(agent)
                problem = _unfit(listed, call.tool, dict(call.params))
            if problem is not None:
                yield _told(record.id, call.tool, call.shown, problem, None)


def _unknown(agent: str) -> PerdureError:
    return Refused(f"agent {agent!r} is not known here", code="AGENT_UNKNOWN")


def _unfit(agent: ReadyAgent, name: str, args: dict[str, Any]) -> PerdureError | None:
    tool = agent.tool(name)
    if tool is None and agent.problem is not None:
        return agent.problem
    if tool is None:
        return Refused(f"agent {agent.name!r} has no tool {name!r}", code="TOOL_MISSING")
    try:
        tool.validate(args)
    except PerdureError as error:
        return error
    return None


def _told(
    session_id: str, tool: str, args: dict[str, Any], problem: PerdureError, pending: str | None
) -> dict[str, Any]:
    return {
        "sessionID": session_id,
        "pendingID": pending,
        "tool": tool,
        "input": args,
        "code": problem.code,
        "error": problem.message,
    }


# --- the configuration --------------------------------------------------------------------------


def validate(settings: Settings, file: str) -> int:
    """Read the configuration and find everything that it names. ConfigError says what is wrong."""
    from pathlib import Path

    from perdure import config

    loaded = config.load(Path(file))
    Runtime.from_config(file)  # imports what it names; opens nothing
    lines = config.describe(loaded)
    terminal = Terminal(settings)
    answer = {"valid": True, "file": file, "lines": lines}
    terminal.either(answer, lambda: terminal.result("\n".join(lines)))
    return 0
