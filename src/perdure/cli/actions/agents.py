"""`perdure agents` and `perdure config validate`: agents, and whether they fit pending calls."""

from collections.abc import AsyncIterator
from typing import Any

from perdure.app import Runtime, service_of, tenant_of
from perdure.cli.open import with_runtime
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, call_text, line
from perdure.core.session.calls import CallStatus
from perdure.errors import PerdureError, Refused
from perdure.runtime.agents.ready_agent import ReadyAgent
from perdure.runtime.tools.tool import Tool


def list_agents(settings: Settings) -> int:
    """List agents with model and tools."""

    async def main(runtime: Runtime) -> None:
        agents = service_of(runtime).agents
        agents_json = [_agent_json(await agents.refresh_tools(agent)) for agent in agents.all()]
        terminal = Terminal(settings)
        terminal.print_either({"agents": agents_json}, lambda: _print_agents(terminal, agents_json))

    with_runtime(settings, main, need="any")
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
    outside = "external" if tool.external else "deferred"
    chosen = (asks, gated), (outside, tool.deferred), ("idempotent", tool.idempotent)
    return [name for name, is_set in chosen if is_set]


def _print_agents(terminal: Terminal, agents: list[dict[str, Any]]) -> None:
    if not agents:
        terminal.print("There are no agents here.")
    for agent in agents:
        terminal.print(f"{line(agent['name'])}  {line(agent['model'])}", bold=True)
        if agent["description"]:
            terminal.print(f"  {line(agent['description'], 160)}")
        for tool in agent["tools"]:
            flags = f"  [{', '.join(tool['flags'])}]" if tool["flags"] else ""
            terminal.print(f"  {line(tool['name'])}{flags}")
        if agent["problem"]:
            terminal.print(f"  ✗ {line(agent['problem']['error'], 200)}")


def check(settings: Settings) -> int:
    """Check every pending call against the agents here. Return 1 if one cannot run."""

    async def main(runtime: Runtime) -> int:
        problems = [problem async for problem in _unfit_pending_calls(runtime)]
        problems += [problem async for problem in _unfit_approved_calls(runtime)]
        terminal = Terminal(settings)
        report = {"ok": not problems, "problems": problems, "count": len(problems)}
        terminal.print_either(report, lambda: _print_problems(terminal, problems))
        return 1 if problems else 0

    return with_runtime(settings, main, need="any")


def _print_problems(terminal: Terminal, problems: list[dict[str, Any]]) -> None:
    for problem in problems:
        call = f"{line(problem['sessionID'])}: {call_text(problem['tool'], problem['input'])}"
        terminal.print(f"✗ {call}  {problem['code']}: {line(problem['error'], 200)}")
    if not problems:
        terminal.print("✓ the agents here can run every pending call")


async def _unfit_pending_calls(runtime: Runtime) -> AsyncIterator[dict[str, Any]]:
    service = service_of(runtime)
    async for record in service.calls.list(tenant_of(runtime)):
        agent = service.agents.find(record.agent)
        if agent is None:
            problem: PerdureError | None = _unknown_agent(record.agent)
        elif record.kind == "approval":  # submitting a result does not need the tool
            agent = await service.agents.refresh_tools(agent)
            problem = _fit_problem(agent, record.tool, record.input)
        else:
            continue
        if problem is not None:
            yield _problem_json(
                record.session_id, record.tool, record.redacted.input, problem, record.id
            )


async def _unfit_approved_calls(runtime: Runtime) -> AsyncIterator[dict[str, Any]]:
    """Yield problems of calls that were approved but have not started."""
    service = service_of(runtime)
    async for entry in service.sessions(tenant_of(runtime)):
        record = entry.record
        if record.is_over or (record.problem is None and record.state == "waiting"):
            continue
        agent = service.agents.find(record.agent)
        log = await service.log(entry)
        for call in log.state.open_calls:
            if call.status not in (CallStatus.APPROVED, CallStatus.NEW):
                continue
            if agent is None:
                problem: PerdureError | None = _unknown_agent(record.agent)
            else:
                agent = await service.agents.refresh_tools(agent)
                problem = _fit_problem(agent, call.tool, dict(call.params))
            if problem is not None:
                yield _problem_json(record.id, call.tool, call.redacted_params, problem, None)


def _unknown_agent(agent: str) -> PerdureError:
    return Refused(
        f"agent {agent!r} is not defined here",
        code="AGENT_UNKNOWN",
        hint="define it again, or add its name to the aliases of another agent",
    )


def _fit_problem(agent: ReadyAgent, name: str, args: dict[str, Any]) -> PerdureError | None:
    tool = agent.tool(name)
    if tool is None and agent.problem is not None:
        return agent.problem
    if tool is None:
        return Refused(
            f"agent {agent.name!r} has no tool {name!r}",
            code="TOOL_MISSING",
            hint="give the agent this tool again, or deny the call",
        )
    try:
        tool.validate(args)
    except PerdureError as error:
        return error
    return None


def _problem_json(
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
    """Load the configuration and everything that it names. Raises ConfigError."""
    from pathlib import Path

    from perdure import config

    loaded = config.load(Path(file))
    Runtime.from_config(file)  # imports the objects that it names, and opens nothing
    lines = config.describe(loaded)
    terminal = Terminal(settings)
    report = {"valid": True, "file": file, "lines": lines}
    terminal.print_either(report, lambda: terminal.print_result("\n".join(lines)))
    return 0
