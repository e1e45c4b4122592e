"""Agents as users define them, with the checks of their settings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from math import isfinite
from typing import Any, Final, Generic, Literal

from typing_extensions import TypeVar

from perdure.core.conversation.compaction import parse_policy
from perdure.core.json_values import json_problem
from perdure.core.options import check_options
from perdure.core.session import queues
from perdure.core.text import NAME, NAME_HINT
from perdure.errors import ConfigError, Refused
from perdure.options import Budget, Compaction, FollowUps, Permissions
from perdure.runtime.mcp.servers import MCPServer, MCPTools
from perdure.runtime.models.base import Model
from perdure.runtime.models.named import PydanticAIModel
from perdure.runtime.tools.tool import Tool
from perdure.runtime.values import Context
from perdure.views.sessions import Result
from perdure.views.values import Content, Duration, parse_duration

T_co = TypeVar("T_co", covariant=True, default=str)

_SINGLE_RUN: Final = "perdure.app.single_run"  # above this layer: it opens a runtime


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
    background: FollowUps = field(default_factory=FollowUps)
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
    budget: Budget = field(default_factory=Budget)
    compaction: Compaction | bool = True
    hitl: Literal["auto", "blocking", "async"] = "auto"
    input_timeout: Duration | None = None  # for approvers; None: no deadline (blocking: 600 s)
    on_expire: Literal["fail", "cancel", "keep"] = "fail"
    expire_grace: Duration = 0  # after the deadline, before `cancel` acts
    while_waiting: Literal["queue", "reject", "cancel_calls"] = "queue"
    permissions: Permissions = field(default_factory=Permissions)
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
        _check_options(self)
        _check_budget(self.name, self.budget)
        _check_background(self.name, self.background)
        _check_settings(self.name, self.model_settings)
        parse_policy(self.compaction, self.name)

    async def run(
        self,
        message: Content,
        *,
        deps: Any = None,
        timeout: Duration | None = None,  # noqa: ASYNC109 - ends the run, and never raises
    ) -> Result[T_co]:
        """Run once and return the result; nothing is stored.

        A run that pauses has the state `waiting` and cannot continue: use a `Runtime` for that.
        After `timeout` it is cancelled.
        """
        alone = import_module(_SINGLE_RUN).run_alone
        return await alone(self, message, deps=deps, timeout=timeout)  # type: ignore[no-any-return]

    def run_sync(
        self, message: Content, *, deps: Any = None, timeout: Duration | None = None
    ) -> Result[T_co]:
        """Run once, as `run` does, in a program that is not async."""
        alone = import_module(_SINGLE_RUN).run_alone_sync
        return alone(self, message, deps=deps, timeout=timeout)  # type: ignore[no-any-return]


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


def _check_options(agent: Agent[Any]) -> None:
    """Refuse unknown keys, such as one with a typo, which would have no effect."""
    kinds: dict[str, Any] = {"background": FollowUps, "budget": Budget, "permissions": Permissions}
    if not isinstance(agent.compaction, bool):
        kinds["compaction"] = Compaction
    for name, kind in kinds.items():
        label = f"agent {agent.name!r}: {name}"
        check_options(getattr(agent, name), kind, label, "AGENT_INVALID")
    for effect, rules in agent.permissions.items():
        if not _is_text_list(rules):
            problem = f"permissions {effect} is {rules!r:.100} and must be a list of rules"
            raise _invalid(agent.name, problem, 'write ["shell:cmd=rm*", "refund"]')


def _check_background(agent: str, background: FollowUps) -> None:
    for name, value in background.items():
        if not isinstance(value, bool):
            raise _invalid(agent, f"background {name} is {value!r} and must be True or False")


def _check_budget(agent: str, budget: Mapping[str, Any]) -> None:
    for name, amount in budget.items():
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


def _is_text_list(value: Any) -> bool:
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return is_list and all(isinstance(item, str) for item in value)


def _invalid(agent: str, problem: str, hint: str | None = None) -> ConfigError:
    return ConfigError(f"agent {agent!r}: {problem}", code="AGENT_INVALID", hint=hint)


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
