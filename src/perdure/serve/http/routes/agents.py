"""Routes of agents."""

from typing import Final

from perdure.runtime.agents.ready_agent import ReadyAgent
from perdure.serve.http.dependencies import READS, RequestScope
from perdure.serve.http.table import Route, tagged
from perdure.views.health import AgentInfo, AgentList, ToolInfo


async def list_agents(scope: RequestScope) -> AgentList:
    """List the agents of this server with their tools, and the JSON schemas of their arguments."""
    return AgentList(agents=tuple([_agent_info(item) for item in scope.service.agents.all()]))


def _agent_info(agent: ReadyAgent) -> AgentInfo:
    tools = [
        ToolInfo(name=tool.name, description=tool.description, parameters=dict(tool.parameters))
        for tool in agent.tools.values()
    ]
    text = agent.agent.description
    return AgentInfo(name=agent.name, description=text, tools=tuple(tools))


ROUTES: Final = tagged(
    "agents",
    Route("GET", "/agents", READS, list_agents),
)
