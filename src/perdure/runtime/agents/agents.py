"""Agents as users define them, and as the engine drives them."""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import Any, Final, Generic, Literal

import msgspec
from typing_extensions import TypeVar

from perdure.core.conversation.compaction import parse_policy
from perdure.core.driver.model_failures import RetryPolicy
from perdure.core.driver.plan import Limits
from perdure.core.json_values import json_problem
from perdure.core.session import queues
from perdure.core.session.budgets import LIMITS
from perdure.core.session.follow_ups import FollowUpRules
from perdure.core.session.state import Run
from perdure.core.text import NAME, NAME_HINT
from perdure.errors import ConfigError, NotFound, PerdureError, Refused
from perdure.runtime.agents.delegation import SubAgent, background_tools
from perdure.runtime.agents.output import OutputShape
from perdure.runtime.agents.permissions import build_permissions
from perdure.runtime.mcp.pool import ServerPool
from perdure.runtime.mcp.servers import ListedTool, MCPServer, MCPTools, check_library
from perdure.runtime.mcp.tools import build_tools
from perdure.runtime.models.base import Model, ToolSpec
from perdure.runtime.models.named import PydanticAIModel
from perdure.runtime.models.resolve import close_all, resolve_models
from perdure.runtime.tools.builtin import resolve_tool
from perdure.runtime.tools.tool import Tool
from perdure.runtime.values import Context, Duration, parse_duration

T_co = TypeVar("T_co", covariant=True, default=str)

BLOCKING_INPUT_TIMEOUT_MS: Final = 600_000  # with hitl="blocking" and no input_timeout


@dataclass(frozen=True)
class Agent(Generic[T_co]):
    """A model with instructions and tools, under a name that its sessions keep."""

    name: str
    model: str | Model | PydanticAIModel = field(kw_only=True)
    instructions: str | Callable[[Context[Any]], str] = ""
    tools: Sequence[Tool[..., Any] | Callable[..., Any] | str | MCPTools | MCPServer] = ()
    output_type: type[T_co] = str  # type: ignore[assignment]
    # Agents, or their names, that it may launch in the background: gives it six tools for that.
    sub_agents: "Sequence[Agent[Any] | str]" = ()
    max_depth: int = 3  # of the tree of background agents below a session of this agent
    # Allows more follow-ups to what it launched: resume_ended, queue_message.
    background: Mapping[str, bool] = field(default_factory=dict)
    model_settings: Mapping[str, Any] = field(default_factory=dict)
    retries: int = 6  # of a failed model request, per turn
    # Models that replace an unavailable one for the rest of the run, in this order.
    fallback: str | Model | PydanticAIModel | Sequence[str | Model | PydanticAIModel] = ()
    max_turns: int = 100
    queue: str = queues.DEFAULT  # the queue of its new sessions
    worker_pool: int | None = None  # how many of its runs one process drives at a time
    timeout: Duration | None = None  # of a run, without the time in which it is waiting
    show_thinking: bool = False  # on the command line
    # Limits of a run with everything that it launched: turns, tokens, seconds, children, cost.
    budget: Mapping[str, float] = field(default_factory=dict)
    compaction: Mapping[str, Any] | bool = True  # at, keep, window, first, instructions
    hitl: Literal["auto", "blocking", "async"] = "auto"
    input_timeout: Duration | None = None  # for approvers; None: no deadline (blocking: 600 s)
    on_expire: Literal["fail", "cancel", "keep"] = "fail"
    expire_grace: Duration = 0  # after the deadline, before `cancel` acts
    while_waiting: Literal["queue", "reject", "cancel_calls"] = "queue"
    permissions: Mapping[str, Sequence[str]] = field(default_factory=dict)  # deny, allow, ask
    description: str = ""
    aliases: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in (self.name, *self.aliases):
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise ConfigError(
                    f"{name!r} cannot be the name of an agent",
                    code="AGENT_INVALID",
                    hint=NAME_HINT,
                )
        _check_queue(self.name, self.queue)
        _check_choice(self, "on_expire", ("fail", "cancel", "keep"))
        _check_choice(self, "while_waiting", ("queue", "reject", "cancel_calls"))
        _check_choice(self, "hitl", ("auto", "blocking", "async"))
        _check_sub_agents(self)
        counts = (("max_turns", 1), ("worker_pool", 1), ("retries", 0), ("max_depth", 0))
        for name, least in counts:
            value = getattr(self, name)
            if (value is not None or name != "worker_pool") and not _is_count(value, least):
                raise _invalid(self.name, f"{name} is {value!r} and must be {least} or more")
        for limit in (self.timeout, self.expire_grace, self.input_timeout):
            if limit is not None:
                parse_duration(limit)
        _check_budget(self.name, self.budget)
        _check_background(self.name, self.background)
        _check_settings(self.name, self.model_settings)
        parse_policy(self.compaction, self.name)


def _check_sub_agents(agent: Agent[Any]) -> None:
    names: set[str] = set()
    for item in agent.sub_agents:
        name = item.name if isinstance(item, Agent) else item
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise _invalid(agent.name, f"sub_agents has {item!r}, which is not an agent")
        if name in names:
            raise _invalid(agent.name, f"sub_agents names {name!r} twice")
        names.add(name)


def _check_queue(agent: str, queue: Any) -> None:
    try:
        queues.check_queue(queue)
    except Refused as error:
        raise ConfigError(
            f"agent {agent!r}: {error.message}", code="AGENT_INVALID", hint=error.hint
        ) from error


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _check_choice(agent: Agent[Any], name: str, allowed: Sequence[str]) -> None:
    value = getattr(agent, name)
    if value not in allowed:
        words = ", ".join(repr(word) for word in allowed)
        raise _invalid(agent.name, f"{name} is {value!r} and must be one of {words}")


def _check_background(agent: str, background: Mapping[str, bool]) -> None:
    names = FollowUpRules.__struct_fields__
    for name, value in background.items():
        if name not in names:
            words = " and ".join(names)
            raise _invalid(agent, f"background has an unknown key {name!r}; it may have {words}")
        if not isinstance(value, bool):
            raise _invalid(agent, f"background {name} is {value!r} and must be True or False")


def _check_budget(agent: str, budget: Mapping[str, float]) -> None:
    for name, amount in budget.items():
        if name not in LIMITS:
            names = ", ".join(LIMITS)
            raise _invalid(agent, f"budget has an unknown key {name!r}; it may have {names}")
        is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
        if not is_number or not isfinite(amount) or amount <= 0:
            raise _invalid(agent, f"budget {name} is {amount!r} and must be a positive number")


def _check_settings(agent: str, settings: Any) -> None:
    """Refuse settings that cannot be sent as JSON; the timeout is not sent."""
    if not isinstance(settings, Mapping):
        raise _invalid(
            agent, f"model_settings must be a mapping; its type is {type(settings).__name__}"
        )
    for name, value in settings.items():
        problem = None if name == "timeout" else json_problem(value, str(name))
        if problem is not None:
            raise _invalid(agent, f"model_settings: {problem}")


def _invalid(agent: str, problem: str) -> ConfigError:
    return ConfigError(f"agent {agent!r}: {problem}", code="AGENT_INVALID")


def tool_name_clash(agent: str, name: str) -> ConfigError:
    """Return the error of an agent with two tools of the same name."""
    return ConfigError(
        f"agent {agent!r} has two tools named {name!r}",
        code="TOOL_NAME_CLASH",
        hint="give one of them another name",
    )


def mcp_tools(agent: Agent[Any]) -> tuple[MCPTools, ...]:
    """Return the tools that an agent takes from MCP servers."""
    items = (item.tools() if isinstance(item, MCPServer) else item for item in agent.tools)
    return tuple(item for item in items if isinstance(item, MCPTools))


class ReadyAgent:
    """An agent with its models and tools resolved, as the engine drives it.

    `tool_lists` are the tools of its MCP servers; without them it has a `problem`.
    """

    def __init__(
        self,
        agent: Agent[Any],
        servers: ServerPool | None = None,
        tool_lists: Mapping[str, tuple[ListedTool, ...]] | None = None,
        models: Mapping[str, Model] | None = None,
        sub_agents: Sequence[SubAgent] = (),
        find: "FindAgent | None" = None,
    ) -> None:
        self.agent = agent
        self.sub_agents = sub_agents  # that it may launch
        self._find = find
        self.name = agent.name
        self.models = models or resolve_models(agent.model, agent.fallback, agent.name)
        self.model = next(iter(self.models.values()))
        self.tools: dict[str, Tool[..., Any]] = {}
        self._by_name: dict[str, Tool[..., Any]] = {}
        self.mcp_choices = mcp_tools(agent)
        self.tool_lists = tool_lists
        self.problem: PerdureError | None = None
        if self.mcp_choices and tool_lists is None:
            self.problem = PerdureError(
                f"the tools of agent {agent.name!r} are not known yet",
                code="MCP_NOT_LISTED",
                hint="wait until its MCP servers have been connected to",
            )
        for item in agent.tools:
            if not isinstance(item, MCPTools | MCPServer):
                self._add(resolve_tool(item))
            elif servers is not None and tool_lists is not None:
                chosen = item if isinstance(item, MCPTools) else item.tools()
                for tool in build_tools(chosen, tool_lists[chosen.server_name], servers):
                    self._add(tool)
        self.follow_up_rules = FollowUpRules(**agent.background)
        for tool in background_tools(sub_agents, self.follow_up_rules):
            self._add(tool)
        self.output = OutputShape(agent.output_type, agent.name)
        limit = None if agent.timeout is None else parse_duration(agent.timeout) or None
        self.limits = Limits(agent.max_turns, limit)
        self.budget: Mapping[str, float] = dict(agent.budget)
        self.permissions = build_permissions(agent, self.tool, is_open=bool(self.mcp_choices))
        self.compaction = parse_policy(agent.compaction, agent.name)

    def _add(self, tool: Tool[..., Any]) -> None:
        if tool.name in self.tools:
            raise tool_name_clash(self.name, tool.name)
        self.tools[tool.name] = tool
        self._by_name |= {name: tool for name in tool.aliases if name not in self.tools}
        self._by_name[tool.name] = tool

    def tool(self, name: str) -> Tool[..., Any] | None:
        """Return the tool with that name or former name."""
        return self._by_name.get(name)

    def find(self, name: str) -> "ReadyAgent | None":
        """Return another agent of its registry; None if it is not known here."""
        return None if self._find is None else self._find(name)

    def queue_of(self, name: str) -> str:
        """Return the queue of new sessions of another agent."""
        ready = self.find(name)
        return queues.DEFAULT if ready is None else ready.agent.queue

    def restricted(self, names: Collection[str]) -> "ReadyAgent":
        """Return the agent with only those of its tools that a child was launched with."""
        allowed = {
            name: tool
            for name, tool in self.tools.items()
            if not {name, *tool.aliases}.isdisjoint(names)
        }
        if len(allowed) == len(self.tools):
            return self
        limited = copy(self)
        for name in ("hidden_arguments", "specs", "tool_digests", "digest"):
            vars(limited).pop(name, None)  # computed from the tools
        by_name = {n: t for n, t in self._by_name.items() if t.name in allowed}
        vars(limited).update(tools=allowed, _by_name=by_name)
        return limited

    @cached_property
    def hidden_arguments(self) -> frozenset[str]:
        """Names of the secret arguments of all its tools."""
        return frozenset().union(*(tool.hidden_arguments for tool in self.tools.values()))

    def model_for(self, run: Run | None) -> Model:
        """Return the model of a run: the agent's own, or the fallback that replaced it."""
        fallback = None if run is None or run.model is None else self.models.get(run.model)
        return fallback or self.model

    @cached_property
    def retry_policy(self) -> RetryPolicy:
        """Retries and fallbacks of failed model requests."""
        return RetryPolicy(self.agent.retries, tuple(self.models))

    @cached_property
    def input_timeout_ms(self) -> int | None:
        """Time that approvers have to decide or answer; None is no deadline."""
        limit = self.agent.input_timeout
        if limit is None:
            return BLOCKING_INPUT_TIMEOUT_MS if self.is_blocking else None
        return parse_duration(limit) or None

    @cached_property
    def is_blocking(self) -> bool:
        """True if its driver waits in place for approvers."""
        return self.agent.hitl == "blocking"

    @cached_property
    def grace_ms(self) -> int:
        """Time after a deadline in which a decision is still accepted before `cancel` acts."""
        return parse_duration(self.agent.expire_grace)

    @cached_property
    def blocking_grace_ms(self) -> int | None:
        """The same for calls that are waited for in place; None is no limit."""
        by_policy = {"fail": 0, "cancel": self.grace_ms, "keep": None}
        return by_policy[self.agent.on_expire]

    @cached_property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as the model sees them."""
        return tuple(ToolSpec(t.name, t.description, t.parameters) for t in self.tools.values())

    @cached_property
    def tool_digests(self) -> dict[str, str]:
        """Digest of each tool, recorded to report later which ones changed."""
        return {name: tool.digest[:12] for name, tool in self.tools.items()}

    @cached_property
    def digest(self) -> str:
        """Hash of model, instructions and tool schemas."""
        instructions = self.agent.instructions
        shape = {
            "model": self.model.name,
            "instructions": instructions if isinstance(instructions, str) else "",
            "tools": self.tool_digests,
        }
        if len(self.models) > 1:
            shape["models"] = list(self.models)
        text = msgspec.json.encode(shape, order="deterministic")
        return hashlib.sha256(text).hexdigest()[:16]


FindAgent = Callable[[str], ReadyAgent | None]


class Agents:
    """Registry of the agents of this process, by name and former names."""

    def __init__(self, agents: Sequence[Agent[Any]], servers: ServerPool | None = None) -> None:
        self._ready: dict[str, ReadyAgent] = {}
        self._adding: set[str] = set()  # agents whose sub-agents are being registered
        self._descriptions = {agent.name: agent.description for agent in agents}
        self.servers = servers or ServerPool()
        for agent in agents:
            self.add(agent)

    def add(self, agent: Agent[Any]) -> ReadyAgent:
        """Register an agent; registering the same object again changes nothing."""
        current = self._ready.get(agent.name)
        if current is not None and current.agent is agent:
            return current
        if current is not None and current.name == agent.name:
            raise ConfigError(
                f"there are two agents named {agent.name!r}",
                code="AGENT_NAME_CLASH",
                hint="give one of them another name",
            )
        if chosen := mcp_tools(agent):
            check_library()
            self.servers.register(agent.name, chosen)
        sub_agents = self._add_sub_agents(agent)
        return self._register(ReadyAgent(agent, sub_agents=sub_agents, find=self.find))

    def _add_sub_agents(self, agent: Agent[Any]) -> tuple[SubAgent, ...]:
        """Register the agents that an agent may launch; return their names and descriptions."""
        self._adding.add(agent.name)
        listed = []
        for item in agent.sub_agents:
            if isinstance(item, Agent) and item.name not in self._adding:
                self.add(item)
            if isinstance(item, Agent):
                listed.append(SubAgent(item.name, item.description))
            else:
                listed.append(SubAgent(item, self._descriptions.get(item, "")))
        self._adding.discard(agent.name)
        return tuple(listed)

    def _register(self, ready: ReadyAgent) -> ReadyAgent:
        agent = ready.agent
        for name in agent.aliases:
            current = self._ready.setdefault(name, ready)
            if current.agent is agent:
                self._ready[name] = ready
        self._ready[agent.name] = ready
        return ready

    def replace(self, agent: Agent[Any]) -> ReadyAgent:
        """Register an agent in place of the one with its name; running drives keep theirs."""
        self._ready.pop(agent.name, None)
        return self.add(agent)

    async def refresh_tools(self, ready: ReadyAgent) -> ReadyAgent:
        """Return the agent with the current tools of its MCP servers.

        If a server was never reached, or its tools cannot be used, the agent has a `problem`; it
        can still do what needs no tools.
        """
        if not ready.mcp_choices:
            return ready
        current = self._ready.get(ready.name)
        if current is not None and current.agent is ready.agent:
            ready = current
        try:
            lists = await self.servers.list_tools(
                {choice.server_name for choice in ready.mcp_choices}
            )
            if lists == ready.tool_lists:
                return ready
            refreshed = ReadyAgent(
                ready.agent, self.servers, lists, ready.models, ready.sub_agents, self.find
            )
        except PerdureError as error:
            refreshed = ReadyAgent(
                ready.agent, models=ready.models, sub_agents=ready.sub_agents, find=self.find
            )
            refreshed.problem = error
            return refreshed
        return self._register(refreshed) if self._ready.get(ready.name) is ready else refreshed

    def find(self, name: str) -> ReadyAgent | None:
        """Return the agent with that name or former name."""
        return self._ready.get(name)

    def get(self, name: str) -> ReadyAgent:
        """Return the agent with that name or former name. Raises NotFound."""
        ready = self.find(name)
        if ready is None:
            names = ", ".join(sorted({agent.name for agent in self._ready.values()})) or "none"
            raise NotFound(
                f"there is no agent {name!r} here",
                code="AGENT_NOT_FOUND",
                hint=f"agents here: {names}",
            )
        return ready

    def queue_for(self, name: str) -> str:
        """Return the queue of new sessions of an agent; the default one for an unknown agent."""
        ready = self.find(name)
        return queues.DEFAULT if ready is None else ready.agent.queue

    def queues(self) -> frozenset[str]:
        """Return the queues of these agents and the default one."""
        return frozenset({queues.DEFAULT, *(ready.agent.queue for ready in self.all())})

    def names(self) -> list[str]:
        """Return every name and former name of these agents."""
        return sorted(self._ready)

    def all(self) -> list[ReadyAgent]:
        """Return the agents, each once."""
        return list({id(ready): ready for ready in self._ready.values()}.values())

    async def close(self) -> None:
        """Close the connections to model providers."""
        for ready in self.all():
            await close_all(ready.models)
