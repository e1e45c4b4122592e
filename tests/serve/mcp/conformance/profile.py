"""Server for the conformance suite: the product's `/mcp`, with the suite's fixtures added.

Fixtures that are long calls launch background agents, so that every task of the suite is a task of
the product: its handle, its inputs and its end are those of any other.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import mcp_types as types
import uvicorn
from mcp.shared.exceptions import MCPError
from tests.serve.mcp.conformance import fixtures

from perdure import Agent, Runtime
from perdure.core.roles import Permit
from perdure.runtime.models.scripted import ScriptedModel
from perdure.serve.http.app import Mount, application
from perdure.serve.http.auth import local_authenticator
from perdure.serve.http.middleware import LOOPBACK, Rules
from perdure.serve.limits import Rate
from perdure.serve.mcp.endpoint import PATH, McpEndpoint
from perdure.serve.mcp.tasks_extension import is_declared, missing_extension
from perdure.serve.mcp.toolbox import LongAnswer, McpCall, McpOptions, McpTool, ToolAnswer
from perdure.serve.mcp.work import BackgroundWork

JOBS = ("slow_compute", "failing_job", "protocol_error_job", "confirm_delete", "multi_input")
WITH_TASK = "test_tool_with_task"


class FixtureModel:
    """Model of the agents behind the fixtures: the prompt says what it does."""

    name = "fixture:model"

    def __init__(self, job: str) -> None:
        self._job = job

    async def answer(self, request: Any) -> AsyncIterator[Any]:
        """Yield one response."""
        arguments = json.loads(str(request.messages[0].content))
        turns: list[dict[str, Any]] = [{"text": f"{self._job}: {json.dumps(arguments)}"}]
        if self._job == "slow_compute":
            await asyncio.sleep(float(arguments.get("seconds", 0)))
        elif self._job in ("failing_job", "protocol_error_job"):
            turns = [{"error": {"text": "the job failed, as it should", "code": "MODEL_ERROR"}}]
        elif self._job == "confirm_delete":
            turns = [{"calls": [_question("Delete it?")]}, {"text": "deleted"}]
        elif self._job == "multi_input":
            questions = [_question("Which name?"), _question("Which color?")]
            turns = [{"calls": questions}, {"text": "both are known"}]
        async for item in ScriptedModel(turns).answer(request):
            yield item


def _question(text: str) -> dict[str, Any]:
    return {"tool": "ask_user", "args": {"question": text}}


def agents() -> list[Agent[Any]]:
    """Return an agent for each long fixture."""
    return [
        Agent(name, model=FixtureModel(name), tools=["ask_user"], retries=0)
        for name in (*JOBS, WITH_TASK)
    ]


async def _run(call: McpCall, job: str) -> LongAnswer:
    prompt = json.dumps(call.args)
    task, _ = await call.service.background.launch(
        call.caller.home_tenant, job, prompt, by=call.caller.name
    )
    return LongAnswer(BackgroundWork.ref(task))


def _fail(_: ToolAnswer) -> ToolAnswer:
    raise MCPError(code=types.INTERNAL_ERROR, message="the job failed in the protocol")


def job_tool(name: str) -> McpTool:
    """Return the tool that launches the agent of a fixture."""

    async def run(call: McpCall) -> LongAnswer:
        return await _run(call, name)

    options: dict[str, Any] = {"outcome": _fail} if name == "protocol_error_job" else {}
    properties = {"seconds": {"type": "number"}, "label": {"type": "string"}}
    properties |= {"filename": {"type": "string"}, "name": {"type": "string"}}
    return McpTool(
        name=name,
        title=name,
        description=f"Fixture {name}.",
        permit=Permit.OPERATE,
        run=run,
        properties=properties,
        **options,
    )


class Profile:
    """Handlers of the product, with the fixtures in front of them."""

    def __init__(self, application_: Any) -> None:
        self._app = application_
        self._jobs = {name: job_tool(name) for name in (*JOBS, WITH_TASK)}
        for tool in self._jobs.values():
            application_.toolbox.add(tool)
        server = application_.server
        product = server.get_request_handler
        self._list_tools = product("tools/list").handler
        self._list_resources = product("resources/list").handler
        self._list_templates = product("resources/templates/list").handler
        self._read_resource = product("resources/read").handler
        self._subscribe = product("resources/subscribe").handler
        self._add(server)

    def _add(self, server: Any) -> None:
        paged = types.PaginatedRequestParams
        for method, params, handler in (
            ("tools/list", paged, self.list_tools),
            ("tools/call", types.CallToolRequestParams, self.call_tool),
            ("resources/list", paged, self.list_resources),
            ("resources/templates/list", paged, self.list_templates),
            ("resources/read", types.ReadResourceRequestParams, self.read_resource),
            ("resources/subscribe", types.SubscribeRequestParams, self.subscribe),
            ("prompts/list", paged, self.list_prompts),
            ("prompts/get", types.GetPromptRequestParams, self.get_prompt),
            ("completion/complete", types.CompleteRequestParams, self.complete),
            ("logging/setLevel", types.SetLevelRequestParams, self.set_level),
        ):
            server.add_request_handler(method, params, handler)
        schemas = server.get_tool_input_schema
        server.get_tool_input_schema = lambda name: fixtures.SCHEMAS.get(name) or schemas(name)

    async def list_tools(self, ctx: Any, params: Any) -> Any:
        """List the product's tools, then the fixtures."""
        result = await self._list_tools(ctx, params)
        return {**result, "tools": [*result["tools"], *fixtures.descriptions()]}

    async def call_tool(self, ctx: Any, params: Any) -> Any:
        """Call a fixture, or a tool of the product."""
        if params.name in fixtures.NAMES:
            return await fixtures.call(ctx, params)
        if params.name == "failing_job" and not is_declared(ctx):
            raise missing_extension()
        if params.name == WITH_TASK:
            name = fixtures.accepted(params, "user_name", "name")
            if name is None:
                return fixtures.needs_input(user_name=fixtures.NAME)
            params = params.model_copy(update={"arguments": {"name": name}})
        return await self._app.call_tool(ctx, params)

    async def list_resources(self, ctx: Any, params: Any) -> Any:
        """List the product's resources and the fixtures."""
        result = await self._list_resources(ctx, params)
        return {**result, "resources": [*fixtures.RESOURCES, *result["resources"]]}

    async def list_templates(self, ctx: Any, params: Any) -> Any:
        """List the product's templates and the fixture."""
        result = await self._list_templates(ctx, params)
        templates = [*result["resourceTemplates"], fixtures.TEMPLATE]
        return {**result, "resourceTemplates": templates}

    async def read_resource(self, ctx: Any, params: Any) -> Any:
        """Read a fixture, or a resource of the product."""
        found = fixtures.resource(str(params.uri))
        return await self._read_resource(ctx, params) if found is None else found

    async def subscribe(self, ctx: Any, params: Any) -> Any:
        """Subscribe to the watched fixture, which never changes, or to a task."""
        if str(params.uri).startswith("test://"):
            return types.EmptyResult()
        return await self._subscribe(ctx, params)

    async def list_prompts(self, _: Any, __: Any) -> Any:
        """List the prompts, which only the suite needs."""
        return {
            **fixtures.COMPLETE,
            "prompts": fixtures.PROMPTS,
            "ttlMs": 0,
            "cacheScope": "private",
        }

    async def get_prompt(self, _: Any, params: Any) -> Any:
        """Return a prompt."""
        return fixtures.prompt(params)

    async def complete(self, _: Any, __: Any) -> Any:
        """Complete an argument."""
        return {
            **fixtures.COMPLETE,
            "completion": {"values": ["paris"], "total": 1, "hasMore": False},
        }

    async def set_level(self, _: Any, __: Any) -> Any:
        """Accept a log level."""
        return types.EmptyResult()


def endpoint(state: Any, rules: Rules) -> McpEndpoint:
    """Return the product's endpoint with the fixtures."""
    return McpEndpoint(state, rules, McpOptions(), extend=Profile)


class _Server(uvicorn.Server):
    """Server that says when it listens: the test waits for that line."""

    async def startup(self, sockets: Any = None) -> None:
        """Start to accept, and say so."""
        await super().startup(sockets)
        print("listening", flush=True)  # noqa: T201


async def serve(folder: Path, port: int) -> None:
    """Serve until the process is killed."""
    many = Rate(10_000, 10_000)
    rules = Rules(hosts=frozenset(LOOPBACK), per_source=many, per_id=many)
    store = f"sqlite:///{folder / 'conformance.db'}"
    async with Runtime(store, agents=agents(), worker=True) as rt:
        authenticate = local_authenticator(LOOPBACK)
        app = application(rt, authenticate, rules, mounts=[Mount(PATH, endpoint)])
        config = uvicorn.Config(app, port=port, lifespan="off", log_level="warning")
        await _Server(config).serve()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("port", type=int)
    options = parser.parse_args()
    asyncio.run(serve(options.folder, options.port))
