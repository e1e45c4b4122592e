"""Summary of a configuration in a few lines, without secrets."""

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from perdure.config.agents import AgentConfig, ModelRef, ToolRef
from perdure.config.settings import Config
from perdure.config.stores import StoreConfig

SHORTEST_TOKEN: Final = 16  # characters; a shorter one is warned of


def describe(config: Config) -> list[str]:
    """Return the lines that `config validate` prints: store, agents, warnings and notes."""
    return [
        f"{config.file}: valid",
        f"store: {_url(config.store)} ({_store_choice(config)})",
        *(f"agent {agent.name}: {_agent(agent)}" for agent in config.agents.values()),
        *_warnings(config),
    ]


def blocking_warnings(config: Config) -> list[str]:
    """Return a warning, with the line that helps, for each agent whose waits a restart loses."""
    return [
        _blocking(agent, config) for agent in config.agents.values() if agent.waits == "blocking"
    ]


def token_warnings(tokens: Mapping[str, str]) -> list[str]:
    """Return a warning for each token, by the name of its caller, that is short enough to guess."""
    return [
        f"warning: the token of {name} has only {len(token)} "
        f"{'character' if len(token) == 1 else 'characters'} and could be guessed; "
        "create one with: openssl rand -hex 32"
        for name, token in tokens.items()
        if len(token) < SHORTEST_TOKEN
    ]


def _blocking(agent: AgentConfig, config: Config) -> str:
    warning = f"warning: agent {agent.name} waits in place, and a restart loses its pending calls"
    if agent.task.hitl.mode == "blocking" and agent.session_store is not None:
        return f"{warning}; to keep them, remove task.hitl.mode: blocking"
    names = [store.name for store in config.session_stores.values() if store.is_durable]
    if names:
        return f"{warning}; to keep them, add to the agent: session_store: {names[0]}"
    return (
        f"{warning}; to keep them, add to the agent: session_store: main-db, and at the top: "
        "session_stores: {main-db: {backend: sql, sql: {driver: sqlite, database: ./perdure.db}}}"
    )


def _url(store: StoreConfig) -> str:
    """Return the URL without the credentials that one of a database server may contain."""
    parts = urlsplit(store.url)
    is_server = parts.scheme.startswith("postgres")
    return f"{parts.scheme}://{parts.hostname}{parts.path}" if is_server else store.url


def _store_choice(config: Config) -> str:
    if not config.store.name:
        return "the default: no durable store is configured"
    is_named = any(agent.session_store for agent in config.agents.values())
    reason = "" if is_named else ", the only durable one"
    return f"session_stores.{config.store.name}{reason}"


def _agent(agent: AgentConfig) -> str:
    tools = [tool.target if isinstance(tool, ToolRef) else tool.mcp for tool in agent.tools]
    waits = {"async": "outlive the process", "blocking": "end with the process (blocking)"}
    models = ", else ".join(_model(model) for model in agent.models)
    return f"{models}; tools: {', '.join(tools) or 'none'}; waits {waits[agent.waits]}"


def _model(model: ModelRef) -> str:
    return f"{model.provider}:{model.script or model.model}"


def _warnings(config: Config) -> Iterator[str]:
    if not config.store.is_durable:
        yield (
            "warning: the store is in memory, and its sessions end with the process; "
            "a durable store: {backend: sql, sql: {driver: sqlite, database: ./perdure.db}}"
        )
    yield from blocking_warnings(config)
    yield from token_warnings({token.name: token.token for token in config.server.tokens})
    if any(agent.task.has_backend for agent in config.agents.values()):
        yield "note: the session store also stores tasks; task.backend has no effect"
    if not config.agents:
        yield "note: there are no agents"
    used = {agent.session_store for agent in config.agents.values()} | {config.store.name}
    for name in config.session_stores:
        if name not in used:
            yield f"note: no agent uses session_stores.{name}"
    agents = config.agents.values()
    models = {model.key[:2] for agent in agents for model in agent.models}
    for name in config.llms:
        if ("llms", name) not in models:
            yield f"note: no agent uses llms.{name}"
