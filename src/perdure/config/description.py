"""A configuration in a few lines, for people who ask whether it is right. No secrets."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from perdure.config.settings import AgentConfig, Config, ModelRef, StoreConfig, ToolRef


def describe(config: Config) -> list[str]:
    """What `config validate` prints: the store, the agents, and what deserves a warning."""
    return [
        f"{config.file}: valid",
        f"store: {_url(config.store)} ({_why(config)})",
        *(f"agent {agent.name}: {_agent(agent)}" for agent in config.agents.values()),
        *_remarks(config),
    ]


def blocking_remarks(config: Config) -> list[str]:
    """A warning for each agent whose waits are lost with the process, and the line that helps."""
    return [
        _blocking(agent, config) for agent in config.agents.values() if agent.waits == "blocking"
    ]


def _blocking(agent: AgentConfig, config: Config) -> str:
    lost = f"warning: agent {agent.name} waits in place, and a restart loses what it waits for"
    if agent.task.hitl == "blocking" and agent.session_store is not None:
        return f"{lost}; durable without task.hitl.mode: blocking"
    names = [store.name for store in config.session_stores.values() if store.is_durable]
    if names:
        return f"{lost}; durable with this line in the agent: session_store: {names[0]}"
    return (
        f"{lost}; durable with this line in the agent: session_store: main-db, and at the top: "
        "session_stores: {main-db: {backend: sql, sql: {driver: sqlite, database: ./perdure.db}}}"
    )


def _url(store: StoreConfig) -> str:
    """As it is, except that of a database server, which may hold a password."""
    parts = urlsplit(store.url)
    is_server = parts.scheme.startswith("postgres")
    return f"{parts.scheme}://{parts.hostname}{parts.path}" if is_server else store.url


def _why(config: Config) -> str:
    if not config.store.name:
        return "the default, for no durable store is configured"
    named = any(agent.session_store for agent in config.agents.values())
    why = "" if named else ", the only durable one"
    return f"session_stores.{config.store.name}{why}"


def _agent(agent: AgentConfig) -> str:
    tools = [tool.target if isinstance(tool, ToolRef) else tool.mcp for tool in agent.tools]
    ways = {"async": "outlive the process", "blocking": "end with the process (blocking)"}
    said = f"tools: {', '.join(tools) or 'none'}; waits {ways[agent.waits]}"
    models = ", else ".join(_model(one) for one in (agent.model, *agent.fallback))
    return f"{models}; {said}"


def _model(model: ModelRef) -> str:
    return f"{model.provider}:{model.script or model.model}"


def _remarks(config: Config) -> Iterator[str]:
    if not config.store.is_durable:
        yield (
            "warning: the store is in memory, and everything in it ends with the process; "
            "durable is {backend: sql, sql: {driver: sqlite, database: ./perdure.db}}"
        )
    yield from blocking_remarks(config)
    if any(agent.task.is_placed for agent in config.agents.values()):
        yield "note: task handles live in the session store, whatever task.backend says"
    if not config.agents:
        yield "note: there are no agents"
    used = {agent.session_store for agent in config.agents.values()} | {config.store.name}
    for name in config.session_stores:
        if name not in used:
            yield f"note: session_stores.{name} is used by no agent"
    agents = config.agents.values()
    models = {one.key[:2] for agent in agents for one in (agent.model, *agent.fallback)}
    for name in config.llms:
        if ("llms", name) not in models:
            yield f"note: llms.{name} is used by no agent"
