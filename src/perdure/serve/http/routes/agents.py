"""Routes of agents."""

from typing import Final

from starlette.responses import Response

from perdure.runtime.agents.ready_agent import ReadyAgent
from perdure.serve.http.dependencies import READS, RequestScope
from perdure.serve.http.responses import json_response
from perdure.serve.http.table import Route, tagged
from perdure.views.health import AgentInfo, AgentList, ToolInfo


async def list_agents(scope: RequestScope) -> Response:
    """List the agents of this server with their tools, and the JSON schemas of their arguments."""
    agents = tuple([_agent_info(agent) for agent in scope.service.agents.all()])
    return json_response(AgentList(agents=agents))


def _agent_info(agent: ReadyAgent) -> AgentInfo:
    tools = [
        ToolInfo(name=tool.name, description=tool.description, parameters=dict(tool.parameters))
        for tool in agent.tools.values()
    ]
    text = agent.agent.description
    return AgentInfo(name=agent.name, description=text, tools=tuple(tools))


ROUTES: Final = tagged(
    "agents",
    Route("GET", "/agents", READS, list_agents, returns={200: AgentList}),
)
