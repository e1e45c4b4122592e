"""Routes of agents."""

from typing import Any, Final

from fastapi import APIRouter, Response

from perdure.runtime.agents.ready_agent import ReadyAgent
from perdure.serve.http.dependencies import Reads
from perdure.serve.http.responses import json_response, object_schema, responses
from perdure.serve.http.schemas import OBJECT, TEXT

router = APIRouter(tags=["agents"])

_TOOL: Final = object_schema(
    ("name", "description", "parameters"), name=TEXT, description=TEXT, parameters=OBJECT
)
_AGENT: Final = object_schema(
    ("name", "description", "tools"),
    name=TEXT,
    description=TEXT,
    tools={"type": "array", "items": _TOOL},
)
_AGENTS: Final = object_schema(("agents",), agents={"type": "array", "items": _AGENT})


@router.get("/agents", responses=responses({200: _AGENTS}))
async def list_agents(scope: Reads) -> Response:
    """List the agents of this server with their tools, and the JSON schemas of their arguments."""
    return json_response({"agents": [_agent_json(agent) for agent in scope.service.agents.all()]})


def _agent_json(agent: ReadyAgent) -> dict[str, Any]:
    tools = [
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        for tool in agent.tools.values()
    ]
    return {"name": agent.name, "description": agent.agent.description, "tools": tools}
