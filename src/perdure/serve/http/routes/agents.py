"""The agents that are known here."""

from typing import Any, Final

from fastapi import APIRouter, Response

from perdure.runtime.agents.agents import ReadyAgent
from perdure.serve.http.dependencies import Reads
from perdure.serve.http.responses import Schema, answers, reply, shape

router = APIRouter(tags=["agents"])

_TEXT: Final[Schema] = {"type": "string"}
_TOOL: Final = shape(("name", "description"), name=_TEXT, description=_TEXT)
_AGENT: Final = shape(
    ("name", "description", "tools"),
    name=_TEXT,
    description=_TEXT,
    tools={"type": "array", "items": _TOOL},
)
_AGENTS: Final = shape(("agents",), agents={"type": "array", "items": _AGENT})


@router.get("/agents", responses=answers({200: _AGENTS}))
async def agents(door: Reads) -> Response:
    """The agents that this server knows, with their tools."""
    return reply({"agents": [_shown(one) for one in door.service.agents.all()]})


def _shown(agent: ReadyAgent) -> dict[str, Any]:
    tools = [{"name": one.name, "description": one.description} for one in agent.tools.values()]
    return {"name": agent.name, "description": agent.agent.description, "tools": tools}
