"""Routes of agents."""

from typing import Final

from perdure.serve.http.dependencies import READS, RequestScope
from perdure.serve.http.table import Route, tagged
from perdure.views.health import AgentList


async def list_agents(scope: RequestScope) -> AgentList:
    """List the agents of this server with their tools, and the JSON schemas of their arguments."""
    return AgentList(agents=scope.sessions.agents())


ROUTES: Final = tagged(
    "agents",
    Route("GET", "/agents", READS, list_agents),
)
