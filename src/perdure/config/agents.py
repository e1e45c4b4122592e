"""Agents of a configuration: each with its model, tools, files and wait mode."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from perdure.config.collector import ProblemCollector
from perdure.config.kinds import InvalidValue
from perdure.config.paths import ConfigFolder
from perdure.config.problems import Key, quoted_list
from perdure.config.settings import (
    AgentConfig,
    AgentTaskConfig,
    McpTools,
    ModelRef,
    StoreConfig,
    ToolRef,
)
from perdure.config.table import PROVIDERS
from perdure.core.providers.catalog import default_provider
from perdure.core.text import did_you_mean

_NOT_SCRIPTED: Final = ("model", "base_url", "api_key", "settings")


def parse_model(data: Mapping[str, Any], key: Key, script: Path | None) -> ModelRef:
    """Return an entry of `llms`. InvalidValue if its keys contradict each other."""
    provider = data["provider"]
    if provider == "scripted":
        if script is None:
            raise InvalidValue("provider scripted needs script: FILE")
        if extra := [name for name in _NOT_SCRIPTED if name in data]:
            raise InvalidValue(f"provider scripted does not take {quoted_list(extra)}")
        return ModelRef(provider=provider, script=script, key=(*key, "script"))
    if "script" in data:
        raise InvalidValue(f"provider {provider} does not take 'script'")
    if "model" not in data:
        raise InvalidValue(f"provider {provider} needs model: NAME")
    return ModelRef(
        provider=provider,
        model=data["model"],
        base_url=data.get("base_url"),
        api_key=data.get("api_key"),
        settings=MappingProxyType(data.get("settings", {})),
        key=(*key, "model"),
    )


def split_model_name(name: str, llms: Mapping[str, Any]) -> tuple[str, str]:
    """Return provider and model of a name that is not a key of `llms`, else raise InvalidValue."""
    provider, colon, model = name.partition(":")
    if colon and model:
        if provider in PROVIDERS:
            return provider, model
        raise InvalidValue(
            f"unknown provider {provider!r}{did_you_mean(provider, PROVIDERS)}",
            f"known providers: {', '.join(PROVIDERS)}",
        )
    known_provider = default_provider(name)
    if known_provider is not None:
        return known_provider, name
    raise InvalidValue(
        f"{name!r} is not a key of llms and not of the form provider:model"
        f"{did_you_mean(name, llms)}",
        f"keys of llms: {', '.join(llms) or 'none'}",
    )


HitlMode = Literal["auto", "blocking", "async"]
WaitMode = Literal["blocking", "async"]

NO_STORE: Final = "async HITL requires session_store to be configured"


def wait_mode(mode: HitlMode, name: str | None, store: StoreConfig | None) -> WaitMode:
    """Return how an agent with this `hitl` mode and session store waits. InvalidValue if it cannot.

    `name` without a `store` is a store with problems of its own, which counts as durable.
    """
    is_durable = name is not None and (store is None or store.is_durable)
    if mode == "async" and name is None:
        raise InvalidValue(
            NO_STORE, "add session_store: NAME to the agent, with NAME under session_stores"
        )
    if mode == "async" and not is_durable:
        raise InvalidValue(
            f"async HITL requires a durable session_store ({name!r} is memory)",
            "name a store with backend: sql",
        )
    return "async" if is_durable and mode != "blocking" else "blocking"


@dataclass(frozen=True, slots=True)
class References:
    """Parts of a configuration that an agent may name; None if a part has problems of its own."""

    folder: ConfigFolder
    problems: ProblemCollector
    stores: Mapping[str, StoreConfig | None]
    llms: Mapping[str, ModelRef | None]
    mcp_servers: Mapping[str, Any]
    agents: Mapping[str, Any]


def parse_agent(name: str, data: Mapping[str, Any], refs: References) -> AgentConfig | None:
    """Return an entry of `agents`; None, with problems collected, if it is invalid."""
    key: Key = ("agents", name)
    attempt = refs.problems.attempt
    model = attempt((*key, "llm"), resolve_model, data["llm"], (*key, "llm"), refs)
    fallback = _fallback(data.get("fallback", ()), key, refs)
    task = _task(data.get("task", {}))
    store = refs.stores.get(data.get("session_store", ""))
    mode = (*key, "task", "hitl", "mode")
    waits = attempt(mode, wait_mode, task.hitl, data.get("session_store"), store)
    for index, agent in enumerate(data.get("sub_agents", ())):
        attempt((*key, "sub_agents", index), _check_agent, agent, refs.agents)
    tools = tuple(
        _tool(tool, (*key, "tools", index), refs)
        for index, tool in enumerate(data.get("tools", ()))
    )
    files = _files(data, key, refs)
    if model is None or waits is None:
        return None
    copied = {"description", "session_store", "max_turns", "show_thinking", "while_waiting"}
    copied |= {"compaction", "retries", "queue"}
    return AgentConfig(
        name=name,
        model=model,
        fallback=fallback,
        tools=tools,
        task=task,
        waits=waits,
        permissions=data.get("permissions", {}),
        sub_agents=tuple(data.get("sub_agents", ())),
        aliases=tuple(data.get("aliases", ())),
        background=data.get("background", {}),
        budget=data.get("budget", {}),
        **{word: data[word] for word in copied & data.keys()},
        **files,
    )


def resolve_model(name: str, key: Key, refs: References) -> ModelRef | None:
    """Return the model that an agent's `llm` names. InvalidValue if there is none."""
    if name in refs.llms:
        return refs.llms[name]
    provider, model = split_model_name(name, refs.llms)
    if provider == "scripted":
        return ModelRef(provider=provider, script=refs.folder.existing_file(model), key=key)
    return ModelRef(provider=provider, model=model, key=key)


def _fallback(names: str | list[str], key: Key, refs: References) -> tuple[ModelRef, ...]:
    """Return the fallback models of an agent; a problem in one is collected."""
    path: Key = (*key, "fallback")
    by_key: dict[Key, str] = (
        {path: names}
        if isinstance(names, str)
        else {(*path, index): name for index, name in enumerate(names)}
    )
    models = [
        refs.problems.attempt(at, resolve_model, name, at, refs) for at, name in by_key.items()
    ]
    return tuple(model for model in models if model is not None)


def _check_agent(name: str, agents: Mapping[str, Any]) -> None:
    if name not in agents:
        raise InvalidValue(f"there is no agent {name!r}{did_you_mean(name, agents)}")


def _tool(data: Any, key: Key, refs: References) -> ToolRef | McpTools:
    if isinstance(data, str):
        return ToolRef(target=data, key=key, target_key=key)
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
    }
    if "use" in data:
        target = options.pop("use")
        overrides = MappingProxyType(options)
        return ToolRef(target=target, options=overrides, key=key, target_key=(*key, "use"))
    refs.problems.attempt((*key, "mcp"), _check_server, data["mcp"], refs.mcp_servers)
    return McpTools(mcp=options.pop("mcp"), options=MappingProxyType(options), key=key)


def _check_server(name: str, servers: Mapping[str, Any]) -> None:
    if name not in servers:
        raise InvalidValue(f"there is no MCP server {name!r}{did_you_mean(name, servers)}")


def _task(data: Mapping[str, Any]) -> AgentTaskConfig:
    options = {name: value for name, value in data.items() if name != "hitl"}
    options["hitl"] = data.get("hitl", {}).get("mode", "auto")
    return AgentTaskConfig(**options, has_backend="backend" in data or "sql" in data)


def _files(data: Mapping[str, Any], key: Key, refs: References) -> dict[str, Any]:
    """Return the fields that may come from files: the instructions and the output type."""
    attempt, folder = refs.problems.attempt, refs.folder
    fields: dict[str, Any] = {}
    if "instructions" in data:
        fields["instructions"] = data["instructions"]
    if "instructions_file" in data:
        path = (*key, "instructions_file")
        fields["instructions"] = attempt(path, folder.read_text, data["instructions_file"]) or ""
    output = data.get("output_type", "")
    if output.endswith(".json"):
        fields["output_schema"] = attempt((*key, "output_type"), folder.existing_file, output)
    elif output:
        fields["output_type"] = output
    return fields
