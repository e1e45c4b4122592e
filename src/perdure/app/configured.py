"""Agents, MCP servers and options of a configuration."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from perdure.address_filter import AddressFilter
from perdure.app.options import RuntimeOptions
from perdure.config.agents import AgentConfig, McpTools, ModelRef, ToolRef
from perdure.config.problems import Key
from perdure.config.settings import Config
from perdure.errors import ConfigError, Refused
from perdure.options import Budget, Compaction, FollowUps, Permissions, Price, TelemetryOptions
from perdure.runtime.agents.agent import Agent, tool_name_clash
from perdure.runtime.agents.prices import Prices
from perdure.runtime.mcp.servers import MCPServer, MCPTools
from perdure.runtime.models.base import Model
from perdure.runtime.models.resolve import ModelWithSettings, named_model
from perdure.runtime.models.scripted import ScriptedModel
from perdure.runtime.telemetry import Telemetry
from perdure.runtime.tools.approval import Approval
from perdure.runtime.tools.tool import Tool, as_tool
from perdure.runtime.webhooks.callbacks import PublicAddress
from perdure.runtime.webhooks.outbox import Receiver
from perdure.tasks.executions.options import ExecutionOptions, execution_options
from perdure.tasks.hooks import HookRegistry, hook_type
from perdure.tasks.settings import TaskSettings
from perdure.views.values import parse_duration

_APPROVAL: Final = {  # a key of a tool -> the field of its Approval
    "allowed_decisions": "allow",
    "approvers": "by",
    "min_approvals": "votes",
    "not_by_starter": "not_by_starter",
    "approval_timeout": "timeout",
}


def agents_from(config: Config) -> list[Agent[Any]]:
    """Return the agents of a configuration; imports the user's modules. Raises ConfigError."""
    return [_agent(agent, config) for agent in config.agents.values()]


def located(error: ConfigError, config: Config) -> ConfigError:
    """Return an error with file, line and key, if it names the path of its value.

    `problem` is its text without the names that the key has already.
    """
    path = error.details.get("path")
    if path is None:
        return error
    text = error.details.get("problem", error.message)
    return config.with_location(ConfigError(text, code=error.code, hint=error.hint), tuple(path))


def mcp_servers_from(config: Config) -> list[MCPServer]:
    """Return the MCP servers of a configuration, whether or not an agent uses them."""
    return [_mcp_server(name, config) for name in config.mcp_servers]


def options_from(config: Config) -> RuntimeOptions:
    """Return the options of a configuration, except deps and worker."""
    server = config.server
    return RuntimeOptions(
        address=PublicAddress(config.public_url, config.webhook_secret, server.secrets[1:]),
        targets=tuple(
            Receiver(receiver.url, receiver.secret, frozenset(receiver.on))
            for receiver in server.webhooks
        ),
        address_filter=AddressFilter.from_allow_list(server.webhook_allow),
        warning_share=server.expiring_after,
        telemetry=Telemetry.from_options(cast("TelemetryOptions", config.telemetry.present())),
        prices=Prices(
            {name: cast("Price", price.present()) for name, price in config.prices.items()}
        ),
        resumes_running=config.recovery.running == "resume",
        poison_after=config.recovery.poison_after,
        keep_settled_ms=parse_duration(config.retention.settled_calls),
        tasks=TaskSettings(config.tasks.root, _hooks(config), _commands(config)),
    )


def _commands(config: Config) -> ExecutionOptions:
    """Return how commands run in tasks. Raises ConfigError."""
    try:
        return execution_options(config.tasks.commands)
    except ConfigError as error:
        raise located(error, config) from error


def _hooks(config: Config) -> HookRegistry:
    """Return the hooks of task lifecycles that a configuration names. Raises ConfigError."""
    registry = HookRegistry()
    for hook in config.tasks.hooks:
        kind = hook_type(hook.on)
        function = config.import_object(hook.use, (*hook.key, "use"))
        try:
            if kind is not None:
                registry.register(kind, function, **hook.options)
        except Refused as error:
            problem = ConfigError(error.message, hint=error.hint)
            raise config.with_location(problem, hook.key) from error
    return registry


def _agent(settings: AgentConfig, config: Config) -> Agent[Any]:
    key = ("agents", settings.name)
    output: Any = str
    if isinstance(settings.output_type, Path):
        output = _json_schema(settings.output_type, config, (*key, "output_type"))
    elif settings.output_type is not None:
        output = config.import_object(settings.output_type, (*key, "output_type"))
    tools = [_tool(tool, config) for tool in settings.tools]
    _check_names(settings, tools, config)
    first, *others = settings.models
    compaction = settings.compaction
    try:
        return Agent(
            settings.name,
            model=_model(first, config, settings.name),
            instructions=settings.instructions or settings.instructions_file,
            tools=tools,
            output_type=output,
            sub_agents=settings.sub_agents,
            background=cast("FollowUps", settings.background.present()),
            model_settings=first.settings,
            fallback=[
                ModelWithSettings(_model(model, config, settings.name), model.settings)
                for model in others
            ],
            retries=settings.retries,
            max_turns=settings.max_turns,
            show_thinking=settings.show_thinking,
            queue=settings.queue,
            worker_pool=settings.task.worker_pool,
            timeout=settings.task.timeout,
            budget=cast("Budget", settings.budget.present()),
            compaction=compaction
            if isinstance(compaction, bool)
            else cast("Compaction", compaction.present()),
            hitl="blocking" if settings.waits == "blocking" else settings.task.hitl.mode,
            input_timeout=settings.task.input_timeout,
            on_expire=settings.task.on_expire,
            expire_grace=settings.task.expire_grace,
            while_waiting=settings.while_waiting,
            permissions=cast("Permissions", settings.permissions.present()),
            description=settings.description,
            aliases=settings.aliases,
        )
    except ConfigError as error:
        raise config.with_location(error, key) from error


def _check_names(
    settings: AgentConfig, tools: Sequence[Tool[..., Any] | MCPTools | str], config: Config
) -> None:
    names: set[str] = set()
    for tool_ref, tool in zip(settings.tools, tools, strict=True):
        if isinstance(tool, MCPTools):
            continue  # their names are known once the server has listed them
        name = tool if isinstance(tool, str) else tool.name
        if name in names:
            raise config.with_location(tool_name_clash(settings.name, name), tool_ref.key)
        names.add(name)


def _json_schema(path: Path, config: Config, key: Key) -> dict[str, Any]:
    try:
        schema = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise config.with_location(ConfigError(f"{path} is not JSON: {error}"), key) from error
    if not isinstance(schema, dict):
        raise config.with_location(ConfigError(f"{path} is not a JSON schema"), key)
    return schema


def _model(ref: ModelRef, config: Config, agent: str) -> Model:
    try:
        if ref.script is not None:
            return ScriptedModel.read(ref.script)
        return named_model(
            ref.provider,
            ref.model or "",
            agent,
            api_key=ref.api_key,
            base_url=ref.base_url,
            llm=str(ref.key[1]) if ref.key[0] == "llms" else None,
        )
    except ConfigError as error:
        raise config.with_location(error, ref.model_key) from error


def _tool(ref: ToolRef | McpTools, config: Config) -> Tool[..., Any] | MCPTools | str:
    try:
        if isinstance(ref, McpTools):
            approval, options = _divided(ref.options)
            return MCPTools(_mcp_server(ref.mcp, config), **options, approval=Approval(**approval))
        if ref.is_built_in:
            return ref.target
        tool = as_tool(config.import_object(ref.target, ref.target_key))
        approval, options = _divided(ref.options)
        if "requires_approval" in options:
            approval["when"] = options.pop("requires_approval")
        return replace(tool, **options, requires_approval=replace(tool.approval, **approval))
    except ConfigError as error:
        raise config.with_location(error, ref.key) from error


def _divided(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of the Approval that a tool's keys describe, and the other keys."""
    rest = dict(options)
    approval = {field: rest.pop(key) for key, field in _APPROVAL.items() if key in rest}
    if "by" in approval:
        approval["by"] = list(approval["by"])  # an empty tuple would permit everyone
    return approval, rest


def _mcp_server(name: str, config: Config) -> MCPServer:
    settings = config.mcp_servers[name]
    try:
        return MCPServer(
            name,
            command=settings.command,
            env=settings.env,
            cwd=(settings.cwd or config.base_dir) if settings.command else None,
            url=settings.url,
            headers=settings.headers,
            **settings.present("command", "env", "cwd", "url", "headers"),
        )
    except ConfigError as error:
        raise config.with_location(error, ("mcp_servers", name)) from error
