"""Page of the agents of this server, with their tools."""

from starlette.responses import Response

from perdure.serve.ui.view import PageView


async def show_agents(view: PageView) -> Response:
    """Show every agent with its tools and what each of them takes."""
    agents = sorted(view.scope.service.agents.all(), key=lambda agent: agent.name)
    return view.page("agents.html", agents=agents, section="agents")
