"""Agents as users write them, and as the engine runs them."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Generic, Literal

import msgspec
from typing_extensions import TypeVar

from perdure.core.conversation.compaction import policy_of
from perdure.core.driver.model_failures import RetryPolicy
from perdure.core.driver.plan import Limits
from perdure.core.json_values import no_json
from perdure.core.session import queues
from perdure.core.session.state import Run
from perdure.errors import ConfigError, NotFound, PerdureError, Refused
from perdure.runtime.agents.output import OutputShape
from perdure.runtime.agents.permissions import permissions_of
from perdure.runtime.mcp.pool import ServerPool
from perdure.runtime.mcp.servers import Listed, MCPServer, MCPTools, check_library
from perdure.runtime.mcp.tools import tools_of
from perdure.runtime.models.base import Model, ToolSpec
from perdure.runtime.models.named import PydanticAIModel
from perdure.runtime.models.resolve import close_all, models_of
from perdure.runtime.tools.builtin import resolve_tool
from perdure.runtime.tools.tool import Tool
from perdure.runtime.values import Context, Duration, parse_duration

T_co = TypeVar("T_co", covariant=True, default=str)

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
IN_PLACE_MS: Final = 600_000  # how long people are waited for in place, unless said otherwise
_BUDGET: Final = frozenset({"turns", "tokens"})
_BUDGET_LATER: Final = frozenset({"seconds", "children"})


@dataclass(frozen=True)
class Agent(Generic[T_co]):
    """A model with instructions and tools, under a name that its sessions keep."""

    name: str
    model: str | Model | PydanticAIModel = field(kw_only=True)
    instructions: str | Callable[[Context[Any]], str] = ""
    tools: Sequence[Tool[..., Any] | Callable[..., Any] | str | MCPTools | MCPServer] = ()
    output_type: type[T_co] = str  # type: ignore[assignment]
    sub_agents: Sequence[Any] = ()
    model_settings: Mapping[str, Any] = field(default_factory=dict)
    retries: int = 6  # how often a model that may answer later is asked again, in one turn
    # Asked, in this order, for the rest of a run for which the model cannot be had.
    fallback: str | Model | PydanticAIModel | Sequence[str | Model | PydanticAIModel] = ()
    max_turns: int = 100
    queue: str = queues.DEFAULT  # which workers its new sessions are for
    worker_pool: int | None = None  # how many of its runs are driven at one time, in a process
    timeout: Duration | None = None  # of a run, without the time in which it waits
    show_thinking: bool = False  # to who watches a run on the command line
    budget: Mapping[str, float] = field(default_factory=dict)
    compaction: Mapping[str, Any] | bool = True  # at, keep, window, first, instructions
    hitl: Literal["auto", "blocking", "async"] = "auto"
    input_timeout: Duration | None = None  # for people; None: no deadline (blocking: 600 s)
    on_expire: Literal["fail", "cancel", "keep"] = "fail"
    expire_grace: Duration = 0  # after the deadline, before `cancel` acts
    while_waiting: Literal["queue", "reject", "cancel_calls"] = "queue"
    permissions: Mapping[str, Sequence[str]] = field(default_factory=dict)  # deny, allow, ask
    description: str = ""
    aliases: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in (self.name, *self.aliases):
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise ConfigError(
                    f"{name!r} cannot be the name of an agent",
                    code="AGENT_INVALID",
                    hint="use letters, digits, '_', '-' and '.', 64 at most",
                )
        _check_queue(self.name, self.queue)
        _one_of(self, "on_expire", ("fail", "cancel", "keep"))
        _one_of(self, "while_waiting", ("queue", "reject", "cancel_calls"))
        _one_of(self, "hitl", ("auto", "blocking", "async"))
        if self.sub_agents:
            raise _later(self.name, "sub_agents")
        for name, least in (("max_turns", 1), ("worker_pool", 1), ("retries", 0)):
            most = getattr(self, name)
            if (most is not None or name != "worker_pool") and not _is_count(most, least):
                raise _invalid(self.name, f"{name} is {most!r}, and must be {least} or more")
        for limit in (self.timeout, self.expire_grace, self.input_timeout):
            if limit is not None:
                parse_duration(limit)
        _check_budget(self.name, self.budget)
        _check_settings(self.name, self.model_settings)
        policy_of(self.compaction, self.name)


def _check_queue(agent: str, queue: Any) -> None:
    try:
        queues.check_queue(queue)
    except Refused as error:
        raise ConfigError(
            f"agent {agent!r}: {error.message}", code="AGENT_INVALID", hint=error.hint
        ) from error


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _one_of(agent: Agent[Any], name: str, allowed: Sequence[str]) -> None:
    value = getattr(agent, name)
    if value not in allowed:
        words = ", ".join(repr(word) for word in allowed)
        raise _invalid(agent.name, f"{name} is {value!r}, and must be one of {words}")


def _check_budget(agent: str, budget: Mapping[str, float]) -> None:
    for name, amount in budget.items():
        if name in _BUDGET_LATER:
            raise _later(agent, f"budget: {name}")
        if name not in _BUDGET:
            raise _invalid(agent, f"budget has an unknown key {name!r}")
        if not isinstance(amount, int | float) or amount <= 0:
            raise _invalid(agent, f"budget {name} is {amount!r}, and must be a positive number")


def _check_settings(agent: str, settings: Any) -> None:
    """Refuse what no request could carry; how long it may take is not sent."""
    if not isinstance(settings, Mapping):
        raise _invalid(agent, f"model_settings is a {type(settings).__name__}, not a mapping")
    for name, value in settings.items():
        found = None if name == "timeout" else no_json(value, str(name))
        if found is not None:
            raise _invalid(agent, f"model_settings: {found}")


def _invalid(agent: str, problem: str) -> ConfigError:
    return ConfigError(f"agent {agent!r}: {problem}", code="AGENT_INVALID")


def _later(agent: str, part: str) -> ConfigError:
    return ConfigError(
        f"agent {agent!r}: {part} is not built yet",
        code="NOT_BUILT_YET",
        hint="leave it out with this version",
    )


def two_tools(agent: str, name: str) -> ConfigError:
    """What is wrong with an agent two of whose tools have one name."""
    return ConfigError(
        f"agent {agent!r} has two tools named {name!r}",
        code="TOOL_NAME_CLASH",
        hint="give one of them another name",
    )


def mcp_tools(agent: Agent[Any]) -> tuple[MCPTools, ...]:
    """What an agent takes from MCP servers."""
    given = (one.tools() if isinstance(one, MCPServer) else one for one in agent.tools)
    return tuple(one for one in given if isinstance(one, MCPTools))


class ReadyAgent:
    """An agent with its model and tools found, as the engine drives it.

    `lists` is what its MCP servers have; until that is known it has a `problem`.
    """

    def __init__(
        self,
        agent: Agent[Any],
        lines: ServerPool | None = None,
        lists: Mapping[str, tuple[Listed, ...]] | None = None,
        models: Mapping[str, Model] | None = None,
    ) -> None:
        self.agent = agent
        self.name = agent.name
        self.models = models or models_of(agent.model, agent.fallback, agent.name)
        self.model = next(iter(self.models.values()))
        self.tools: dict[str, Tool[..., Any]] = {}
        self._by_name: dict[str, Tool[..., Any]] = {}
        self.chosen = mcp_tools(agent)
        self.lists = lists
        self.problem: PerdureError | None = None
        if self.chosen and lists is None:
            self.problem = PerdureError(
                f"the tools of agent {agent.name!r} are not known yet", code="MCP_NOT_LISTED"
            )
        for item in agent.tools:
            if not isinstance(item, MCPTools | MCPServer):
                self._add(resolve_tool(item))
            elif lines is not None and lists is not None:
                chosen = item if isinstance(item, MCPTools) else item.tools()
                for one in tools_of(chosen, lists[chosen.server_name], lines):
                    self._add(one)
        self.output = OutputShape(agent.output_type, agent.name)
        limit = None if agent.timeout is None else parse_duration(agent.timeout) or None
        self.limits = Limits(agent.max_turns, dict(agent.budget), limit)
        self.permissions = permissions_of(agent, self.tool, is_open=bool(self.chosen))
        self.compaction = policy_of(agent.compaction, agent.name)

    def _add(self, tool: Tool[..., Any]) -> None:
        if tool.name in self.tools:
            raise two_tools(self.name, tool.name)
        self.tools[tool.name] = tool
        self._by_name |= {name: tool for name in tool.aliases if name not in self.tools}
        self._by_name[tool.name] = tool

    def tool(self, name: str) -> Tool[..., Any] | None:
        """The tool of that name, or that had it once."""
        return self._by_name.get(name)

    @cached_property
    def hidden(self) -> frozenset[str]:
        """The arguments of all its tools that are shown to nobody."""
        return frozenset().union(*(tool.hidden for tool in self.tools.values()))

    def model_of(self, run: Run | None) -> Model:
        """Who answers in a run: one that stands in for the agent's own model, once it had to."""
        stand_in = None if run is None or run.model is None else self.models.get(run.model)
        return stand_in or self.model

    @cached_property
    def patience(self) -> RetryPolicy:
        """What is done about a model that does not answer."""
        return RetryPolicy(self.agent.retries, tuple(self.models))

    @cached_property
    def input_timeout_ms(self) -> int | None:
        """How long people may take to decide or answer; None is for ever."""
        limit = self.agent.input_timeout
        if limit is None:
            return IN_PLACE_MS if self.blocks else None
        return parse_duration(limit) or None

    @cached_property
    def blocks(self) -> bool:
        """Whether people are waited for in place, by the run itself."""
        return self.agent.hitl == "blocking"

    @cached_property
    def grace_ms(self) -> int:
        """How long after a deadline an answer is still taken before `cancel` acts."""
        return parse_duration(self.agent.expire_grace)

    @cached_property
    def patience_ms(self) -> int | None:
        """The same for what is waited for in place; None: for ever."""
        by_policy = {"fail": 0, "cancel": self.grace_ms, "keep": None}
        return by_policy[self.agent.on_expire]

    @cached_property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as the model is shown them."""
        return tuple(ToolSpec(t.name, t.description, t.parameters) for t in self.tools.values())

    @cached_property
    def tool_digests(self) -> dict[str, str]:
        """What each tool looked like, to tell later what changed."""
        return {name: tool.digest[:12] for name, tool in self.tools.items()}

    @cached_property
    def digest(self) -> str:
        """A hash of model, instructions and tool schemas."""
        said = self.agent.instructions
        shape = {
            "model": self.model.name,
            "instructions": said if isinstance(said, str) else "",
            "tools": self.tool_digests,
        }
        if len(self.models) > 1:
            shape["models"] = list(self.models)
        text = msgspec.json.encode(shape, order="deterministic")
        return hashlib.sha256(text).hexdigest()[:16]

    def instructions(self, ctx: Context[Any]) -> str:
        """What the model is told first."""
        said = self.agent.instructions
        return said if isinstance(said, str) else said(ctx)


class Agents:
    """The agents that this process knows, by name and former names."""

    def __init__(self, agents: Sequence[Agent[Any]], lines: ServerPool | None = None) -> None:
        self._ready: dict[str, ReadyAgent] = {}
        self.lines = lines or ServerPool()
        for agent in agents:
            self.add(agent)

    def add(self, agent: Agent[Any]) -> ReadyAgent:
        """Make an agent known; the same one again changes nothing."""
        known = self._ready.get(agent.name)
        if known is not None and known.agent is agent:
            return known
        if known is not None and known.name == agent.name:
            raise ConfigError(
                f"there are two agents named {agent.name!r}",
                code="AGENT_NAME_CLASH",
                hint="give one of them another name",
            )
        if chosen := mcp_tools(agent):
            check_library()
            self.lines.know(agent.name, chosen)
        return self._put(ReadyAgent(agent))

    def _put(self, ready: ReadyAgent) -> ReadyAgent:
        agent = ready.agent
        for name in agent.aliases:
            taken = self._ready.setdefault(name, ready)
            if taken.agent is agent:
                self._ready[name] = ready
        self._ready[agent.name] = ready
        return ready

    def replace(self, agent: Agent[Any]) -> ReadyAgent:
        """Make an agent known in the place of the one that has its name; drives keep theirs."""
        self._ready.pop(agent.name, None)
        return self.add(agent)

    async def listed(self, ready: ReadyAgent) -> ReadyAgent:
        """The agent with the tools that its MCP servers have now.

        Where one cannot be reached and never could, or has what cannot be used, it has a
        `problem`; what needs no tools it can do all the same.
        """
        if not ready.chosen:
            return ready
        known = self._ready.get(ready.name)
        if known is not None and known.agent is ready.agent:
            ready = known
        try:
            lists = await self.lines.lists({one.server_name for one in ready.chosen})
            if lists == ready.lists:
                return ready
            made = ReadyAgent(ready.agent, self.lines, lists, ready.models)
        except PerdureError as error:
            made = ReadyAgent(ready.agent, models=ready.models)
            made.problem = error
            return made
        return self._put(made) if self._ready.get(ready.name) is ready else made

    def find(self, name: str) -> ReadyAgent | None:
        """The agent of that name, or that had it once."""
        return self._ready.get(name)

    def get(self, name: str) -> ReadyAgent:
        """The agent of that name. Raises NotFound."""
        found = self.find(name)
        if found is None:
            known = ", ".join(sorted({ready.name for ready in self._ready.values()})) or "none"
            raise NotFound(
                f"there is no agent {name!r} here",
                code="AGENT_NOT_FOUND",
                hint=f"agents here: {known}",
            )
        return found

    def queue_of(self, name: str) -> str:
        """Where a new session of an agent belongs; of one that is not known, where all do."""
        found = self.find(name)
        return queues.DEFAULT if found is None else found.agent.queue

    def queues(self) -> frozenset[str]:
        """Those that sessions of these agents are in, unless somebody said otherwise."""
        return frozenset({queues.DEFAULT, *(one.agent.queue for one in self.all())})

    def names(self) -> list[str]:
        """Every name under which sessions of these agents may stand."""
        return sorted(self._ready)

    def all(self) -> list[ReadyAgent]:
        """The agents, each once."""
        return list({id(ready): ready for ready in self._ready.values()}.values())

    async def close(self) -> None:
        """Give back the connections to model providers."""
        for ready in self.all():
            await close_all(ready.models)
