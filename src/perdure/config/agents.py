"""From the data of one agent to its AgentConfig."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from perdure.config.kinds import Wrong
from perdure.config.models import split
from perdure.config.modes import waits_of
from perdure.config.notes import Notes
from perdure.config.paths import Folder
from perdure.config.problems import Key, did_you_mean
from perdure.config.settings import (
    AgentConfig,
    McpTools,
    ModelRef,
    StoreConfig,
    TaskConfig,
    ToolRef,
)


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
    fallback = _fallback(said.get("fallback", ()), key, around)
    task = _task(said.get("task", {}))
    store = around.stores.get(said.get("session_store", ""))
    mode = (*key, "task", "hitl", "mode")
    waits = attempt(mode, waits_of, task.hitl, said.get("session_store"), store)
    for at, other in enumerate(said.get("sub_agents", ())):
        attempt((*key, "sub_agents", at), _check_agent, other, around.agents)
    tools = tuple(
        _tool(tool, (*key, "tools", at), around) for at, tool in enumerate(said.get("tools", ()))
    )
    files = _files(said, key, around)
    if model is None or waits is None:
        return None
    plain = {"description", "session_store", "max_turns", "show_thinking", "while_waiting"}
    plain |= {"compaction", "retries", "queue"}
    return AgentConfig(
        name=name,
        model=model,
        fallback=fallback,
        tools=tools,
        task=task,
        waits=waits,
        permissions=_permissions(said.get("permissions", {})),
        sub_agents=tuple(said.get("sub_agents", ())),
        aliases=tuple(said.get("aliases", ())),
        budget=MappingProxyType(said.get("budget", {})),
        **{word: said[word] for word in plain & said.keys()},
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


def _fallback(said: str | list[str], key: Key, around: Surroundings) -> tuple[ModelRef, ...]:
    """The models that stand in for an agent's own; a mistake in one is noted."""
    where: Key = (*key, "fallback")
    places = (
        [(where, said)] if isinstance(said, str) else [((*where, n), s) for n, s in enumerate(said)]
    )
    found = [around.notes.attempt(at, model_named, name, at, around) for at, name in places]
    return tuple(one for one in found if one is not None)


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
    return McpTools(mcp=options.pop("mcp"), options=MappingProxyType(options), key=key)


def _check_server(name: str, servers: Mapping[str, Any]) -> None:
    if name not in servers:
        raise Wrong(f"there is no MCP server {name!r}{did_you_mean(name, servers)}")


def _permissions(said: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]]:
    return MappingProxyType({effect: tuple(rules) for effect, rules in said.items()})


def _task(said: Mapping[str, Any]) -> TaskConfig:
    rest = {name: value for name, value in said.items() if name != "hitl"}
    is_placed = "backend" in said or "sql" in said
    return TaskConfig(**rest, hitl=said.get("hitl", {}).get("mode", "auto"), is_placed=is_placed)


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
