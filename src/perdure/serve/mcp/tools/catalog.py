"""The catalog of tools that a server offers: those for tasks, and with agents those for them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perdure.serve.mcp.toolbox import McpOptions, Toolbox
from perdure.serve.mcp.tools.tasks import ALIASES, task_tools

if TYPE_CHECKING:  # a server on stdio lists its tools before it imports the runtime
    from perdure.runtime.agents.ready_agent import ReadyAgent


def toolbox_of(agents: "Sequence[ReadyAgent]", options: McpOptions) -> Toolbox:
    """Return the tools of a server. Without agents they are exactly those for tasks."""
    tools = task_tools()
    if agents:
        from perdure.serve.mcp.tools.background import background_tools
        from perdure.serve.mcp.tools.pending import pending_tools

        tools += [*background_tools(agents), *pending_tools(options)]
    return Toolbox(tools, ALIASES, options)
