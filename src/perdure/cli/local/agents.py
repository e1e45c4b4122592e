"""`perdure agents` and `perdure config validate`: agents, as they are defined here."""

from typing import Any

from perdure.app import Runtime, service_of
from perdure.cli.backend.open import with_runtime
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, line
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
    gated = tool.approval.when is not False
    asks = "approval" if tool.approval.when is True else "approval?"
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
