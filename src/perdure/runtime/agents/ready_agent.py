"""Agents as the engine drives them: with their models and tools resolved."""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, Final

import msgspec

from perdure.core.conversation.compaction import parse_policy
from perdure.core.driver.model_failures import RetryPolicy
from perdure.core.driver.plan import Limits
from perdure.core.session import queues
from perdure.core.session.follow_ups import FollowUpRules
from perdure.core.session.state import Run
from perdure.errors import PerdureError
from perdure.runtime.agents.agent import Agent, mcp_tools, tool_name_clash
from perdure.runtime.agents.delegation import SubAgent, background_tools
from perdure.runtime.agents.output import OutputShape
from perdure.runtime.agents.permissions import build_permissions
from perdure.runtime.mcp.pool import ServerPool
from perdure.runtime.mcp.servers import ListedTool, MCPServer, MCPTools
from perdure.runtime.models.base import Model, ToolSpec
from perdure.runtime.models.resolve import resolve_models
from perdure.runtime.tools.builtin import resolve_tool
from perdure.runtime.tools.tool import Tool
from perdure.views.values import parse_duration

BLOCKING_INPUT_TIMEOUT_MS: Final = 600_000  # with hitl="blocking" and no input_timeout

NOT_LISTED: Final = "MCP_NOT_LISTED"  # its MCP servers have not been reached yet


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
                code=NOT_LISTED,
                hint="wait until its MCP servers have been connected to",
            )
        for item in agent.tools:
            if not isinstance(item, MCPTools | MCPServer):
                self._add(resolve_tool(item))
            elif servers is not None and tool_lists is not None:
                from perdure.runtime.mcp.tools import build_tools

                chosen = item if isinstance(item, MCPTools) else item.tools()
                for tool in build_tools(chosen, tool_lists[chosen.server_name], servers):
                    self._add(tool)
        self.follow_up_rules = FollowUpRules(**agent.background)
        for tool in background_tools(sub_agents, self.follow_up_rules):
            self._add(tool)
        self.output = OutputShape(agent.output_type, agent.name)
        limit = None if agent.timeout is None else parse_duration(agent.timeout) or None
        self.limits = Limits(agent.max_turns, limit)
        self.budget: Mapping[str, float] = {**agent.budget}  # type: ignore[dict-item]
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
        for name in ("hidden_arguments", "external_names", "specs", "tool_digests", "digest"):
            vars(limited).pop(name, None)  # computed from the tools
        by_name = {n: t for n, t in self._by_name.items() if t.name in allowed}
        vars(limited).update(tools=allowed, _by_name=by_name)
        return limited

    @cached_property
    def hidden_arguments(self) -> frozenset[str]:
        """Names of the secret arguments of all its tools."""
        return frozenset().union(*(tool.hidden_arguments for tool in self.tools.values()))

    @cached_property
    def external_names(self) -> frozenset[str]:
        """Names and former names of its external tools."""
        return frozenset(name for name, tool in self._by_name.items() if tool.external)

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
