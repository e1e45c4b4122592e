"""From the data of one agent to its AgentConfig."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from holdfast.config.kinds import Wrong
from holdfast.config.models import split
from holdfast.config.notes import Notes
from holdfast.config.paths import Folder
from holdfast.config.problems import Key, did_you_mean
from holdfast.config.settings import (
    AgentConfig,
    McpTools,
    ModelRef,
    StoreConfig,
    TaskConfig,
    ToolRef,
)
from holdfast.config.stores import named_store


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an agent may name; None stands for what is there but has problems of its own."""

    folder: Folder
    notes: Notes
    stores: Mapping[str, StoreConfig | None]
    llms: Mapping[str, ModelRef | None]
    mcp_servers: Mapping[str, Any]
    agents: Mapping[str, Any]


def agent_of(name: str, said: Mapping[str, Any], around: Surroundings) -> AgentConfig | None:
    """An entry of `agents`; None, and notes, if it is not right."""
    key: Key = ("agents", name)
    attempt = around.notes.attempt
    model = attempt((*key, "llm"), model_named, said["llm"], (*key, "llm"), around)
    attempt((*key, "task", "hitl", "mode"), _check_mode, said, around.stores)
    for at, other in enumerate(said.get("sub_agents", ())):
        attempt((*key, "sub_agents", at), _check_agent, other, around.agents)
    tools = tuple(
        _tool(tool, (*key, "tools", at), around) for at, tool in enumerate(said.get("tools", ()))
    )
    files = _files(said, key, around)
    if model is None:
        return None
    plain = ("description", "session_store", "max_turns", "while_waiting")
    return AgentConfig(
        name=name,
        model=model,
        tools=tools,
        task=_task(said.get("task", {})),
        sub_agents=tuple(said.get("sub_agents", ())),
        aliases=tuple(said.get("aliases", ())),
        budget=MappingProxyType(said.get("budget", {})),
        **{word: said[word] for word in plain if word in said},
        **files,
    )


def model_named(name: str, key: Key, around: Surroundings) -> ModelRef | None:
    """The model that an agent's `llm` means; Wrong if there is none."""
    if name in around.llms:
        return around.llms[name]
    provider, model = split(name, around.llms)
    if provider == "scripted":
        return ModelRef(provider=provider, script=around.folder.file(model), key=key)
    return ModelRef(provider=provider, model=model, key=key)


def _check_mode(said: Mapping[str, Any], stores: Mapping[str, StoreConfig | None]) -> None:
    if said.get("task", {}).get("hitl", {}).get("mode") != "async":
        return
    name = said.get("session_store")
    if name is None:
        raise Wrong(
            "async HITL requires session_store to be configured",
            "add session_store: NAME to the agent, with NAME under session_stores",
        )
    store = named_store(name, stores) if name in stores else None
    if store is not None and not store.is_durable:
        raise Wrong(f"async HITL requires a durable session_store, and {name!r} is in memory")


def _check_agent(name: str, agents: Mapping[str, Any]) -> None:
    if name not in agents:
        raise Wrong(f"there is no agent {name!r}{did_you_mean(name, agents)}")


def _tool(said: Any, key: Key, around: Surroundings) -> ToolRef | McpTools:
    if isinstance(said, str):
        return ToolRef(target=said, key=key, target_key=key)
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in said.items()
    }
    if "use" in said:
        target = options.pop("use")
        laid_over = MappingProxyType(options)
        return ToolRef(target=target, options=laid_over, key=key, target_key=(*key, "use"))
    around.notes.attempt((*key, "mcp"), _check_server, said["mcp"], around.mcp_servers)
    return McpTools(**options, key=key)


def _check_server(name: str, servers: Mapping[str, Any]) -> None:
    if name not in servers:
        raise Wrong(f"there is no MCP server {name!r}{did_you_mean(name, servers)}")


def _task(said: Mapping[str, Any]) -> TaskConfig:
    rest = {name: value for name, value in said.items() if name != "hitl"}
    return TaskConfig(**rest, hitl=said.get("hitl", {}).get("mode", "auto"))


def _files(said: Mapping[str, Any], key: Key, around: Surroundings) -> dict[str, Any]:
    """What the agent takes from files, and its output type, which may be one."""
    attempt, folder = around.notes.attempt, around.folder
    found: dict[str, Any] = {}
    if "instructions" in said:
        found["instructions"] = said["instructions"]
    if "instructions_file" in said:
        where = (*key, "instructions_file")
        found["instructions"] = attempt(where, folder.text, said["instructions_file"]) or ""
    output = said.get("output_type", "")
    if output.endswith(".json"):
        found["output_schema"] = attempt((*key, "output_type"), folder.file, output)
    elif output:
        found["output_type"] = output
    return found
