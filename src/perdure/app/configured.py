"""From what a configuration says to agents that run."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from perdure.config import AgentConfig, Config, McpTools, ModelRef, ToolRef
from perdure.config.problems import Key
from perdure.config.settings import ServerConfig
from perdure.errors import ConfigError
from perdure.runtime.agents.agents import Agent, two_tools
from perdure.runtime.mcp.servers import MCPServer, MCPTools
from perdure.runtime.models.base import Model
from perdure.runtime.models.resolve import ModelWithSettings, named_model
from perdure.runtime.models.scripted import ScriptedModel
from perdure.runtime.tools.tool import Tool, as_tool
from perdure.runtime.webhooks.addresses import Screen
from perdure.runtime.webhooks.outbox import Outbox, Target


def agents_from(config: Config) -> list[Agent[Any]]:
    """The agents of a configuration; imports the user's modules. ConfigError says where."""
    return [_agent(agent, config) for agent in config.agents.values()]


def mcp_servers_from(config: Config) -> list[MCPServer]:
    """The MCP servers of a configuration, whether or not an agent of it uses them."""
    return [_mcp_server(name, config) for name in config.mcp_servers]


def tell(outbox: Outbox, said: ServerConfig) -> None:
    """Let an outbox know whom the server tells, and whom it may call."""
    outbox.targets = tuple(Target(one.url, one.secret, frozenset(one.on)) for one in said.webhooks)
    outbox.screen = Screen.allowing(said.webhook_allow)
    outbox.share, outbox.is_configured = said.expiring_after, True


def _agent(said: AgentConfig, config: Config) -> Agent[Any]:
    key = ("agents", said.name)
    output: Any = str
    if said.output_type is not None:
        output = config.import_object(said.output_type, (*key, "output_type"))
    if said.output_schema is not None:
        output = _json_schema(said.output_schema, config, (*key, "output_type"))
    tools = [_tool(tool, config) for tool in said.tools]
    _check_names(said, tools, config)
    try:
        return Agent(
            said.name,
            model=_model(said.model, config, said.name),
            instructions=said.instructions,
            tools=tools,
            output_type=output,
            sub_agents=said.sub_agents,
            model_settings=said.model.settings,
            fallback=[
                ModelWithSettings(_model(one, config, said.name), one.settings)
                for one in said.fallback
            ],
            retries=said.retries,
            max_turns=said.max_turns,
            show_thinking=said.show_thinking,
            queue=said.queue,
            worker_pool=said.task.worker_pool,
            timeout=said.task.timeout,
            budget=said.budget,
            compaction=said.compaction,
            hitl="blocking" if said.waits == "blocking" else said.task.hitl,
            input_timeout=said.task.input_timeout,
            on_expire=said.task.on_expire,
            expire_grace=said.task.expire_grace,
            while_waiting=said.while_waiting,
            permissions=said.permissions,
            description=said.description,
            aliases=said.aliases,
        )
    except ConfigError as error:
        raise config.located(error, key) from error


def _check_names(
    said: AgentConfig, tools: Sequence[Tool[..., Any] | MCPTools | str], config: Config
) -> None:
    seen: set[str] = set()
    for ref, tool in zip(said.tools, tools, strict=True):
        if isinstance(tool, MCPTools):
            continue  # their names are known when the server has told them
        name = tool if isinstance(tool, str) else tool.name
        if name in seen:
            raise config.located(two_tools(said.name, name), ref.key)
        seen.add(name)


def _json_schema(path: Path, config: Config, key: Key) -> dict[str, Any]:
    try:
        schema = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise config.located(ConfigError(f"{path} is not JSON: {error}"), key) from error
    if not isinstance(schema, dict):
        raise config.located(ConfigError(f"{path} is not a JSON schema"), key)
    return schema


def _model(said: ModelRef, config: Config, agent: str) -> Model:
    try:
        if said.script is not None:
            return ScriptedModel.read(said.script)
        return named_model(
            said.provider,
            said.model or "",
            agent,
            api_key=said.api_key,
            base_url=said.base_url,
            llm=str(said.key[1]) if said.key[0] == "llms" else None,
        )
    except ConfigError as error:
        raise config.located(error, said.key) from error


def _tool(said: ToolRef | McpTools, config: Config) -> Tool[..., Any] | MCPTools | str:
    try:
        if isinstance(said, McpTools):
            return MCPTools(_mcp_server(said.mcp, config), **said.options)
        if said.is_built_in:
            return said.target
        found = config.import_object(said.target, said.key)
        return replace(as_tool(found), **said.options)
    except ConfigError as error:
        raise config.located(error, said.key) from error


def _mcp_server(name: str, config: Config) -> MCPServer:
    said = config.mcp_servers[name]
    try:
        return MCPServer(
            name,
            command=said.command,
            env=said.env,
            cwd=(said.cwd or config.base_dir) if said.command else None,
            url=said.url,
            headers=said.headers,
            **said.options,
        )
    except ConfigError as error:
        raise config.located(error, ("mcp_servers", name)) from error
