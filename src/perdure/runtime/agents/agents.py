"""Agents that this process knows, by name."""

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.core.session import queues
from perdure.core.text import did_you_mean
from perdure.errors import ConfigError, NotFound, PerdureError
from perdure.runtime.agents.agent import Agent, mcp_tools
from perdure.runtime.agents.delegation import SubAgent
from perdure.runtime.agents.ready_agent import ReadyAgent
from perdure.runtime.mcp.pool import ServerPool
from perdure.runtime.mcp.servers import check_library
from perdure.runtime.models.resolve import close_all


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

    @property
    def by_name(self) -> Mapping[str, ReadyAgent]:
        """These agents by every name and former name."""
        return self._ready

    def may_launch(self, name: str) -> bool:
        """Return whether an agent may have launched others; True for one that is not known here."""
        ready = self.find(name)
        return ready is None or bool(ready.sub_agents)

    def get(self, name: str) -> ReadyAgent:
        """Return the agent with that name or former name. Raises NotFound."""
        ready = self.find(name)
        if ready is None:
            names = sorted({agent.name for agent in self._ready.values()})
            raise NotFound(
                f"there is no agent {name!r} here{did_you_mean(name, names)}",
                code="AGENT_NOT_FOUND",
                hint=f"agents here: {', '.join(names) or 'none'}",
            )
        return ready

    def expect(self, name: str) -> ReadyAgent | None:
        """Return the agent of a new session; None if no agent at all is known here.

        Raises NotFound: no worker would ever drive the session of a mistyped name.
        """
        return self.get(name) if self._ready else None

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
