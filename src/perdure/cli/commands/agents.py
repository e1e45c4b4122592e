"""`perdure agents`: the agents as they are defined here."""

from typing import TYPE_CHECKING, Any

import click

from perdure.cli.backend.console import Console, with_store
from perdure.cli.settings import Settings, shared_options, with_settings
from perdure.cli.terminal.terminal import Terminal, line

if TYPE_CHECKING:
    from perdure.app import Runtime
    from perdure.runtime.agents.ready_agent import ReadyAgent
    from perdure.runtime.tools.tool import Tool


@click.group()
@shared_options
def agents() -> None:
    """Inspect the configured agents."""


@agents.command("list")
@with_settings
def list_(settings: Settings) -> int:
    """List the agents with their models and tools."""

    async def main(console: Console, runtime: "Runtime") -> None:
        from perdure.app import service_of

        registry = service_of(runtime).agents
        agents_json = [_agent_json(await registry.refresh_tools(agent)) for agent in registry.all()]
        console.print_either({"agents": agents_json}, lambda: _print_agents(console, agents_json))

    return with_store(settings, main, need="any")


def _agent_json(agent: "ReadyAgent") -> dict[str, Any]:
    return {
        "name": agent.name,
        "model": agent.model.name,
        "description": agent.agent.description,
        "tools": [{"name": t.name, "flags": _flags(t)} for t in agent.tools.values()],
        "problem": None if agent.problem is None else agent.problem.to_json(),
    }


def _flags(tool: "Tool[..., Any]") -> list[str]:
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


@agents.command()
@with_settings
def check(settings: Settings) -> int:
    """Check that the agents here can run every pending call.

    The exit code is 1 if they cannot. Run this before you deploy a new version of the tools.
    """
    from perdure.cli.backend.inspection import inspection
    from perdure.cli.backend.open import load_runtime
    from perdure.cli.local.doctor import agents_here, findings_json, print_findings
    from perdure.findings.severities import exit_code
    from perdure.runtime.doctor.agents import AgentsCheckup

    inspector, _ = inspection(settings)
    agents_by_name = agents_here(load_runtime(settings, "any"))
    findings = AgentsCheckup(inspector, agents_by_name, settings.tenant).findings()
    terminal = Terminal(settings)

    def show() -> None:
        if findings:
            print_findings(terminal, findings)
        else:
            terminal.print("✓ the agents here can run every pending call")

    terminal.print_either(findings_json(findings), show)
    return exit_code(findings)
