"""Types of the options that a program passes as plain mappings, with the keys that YAML has.

A type checker refuses a key that does not exist or a value of another type; perdure does too, when
the agent or runtime is created.
"""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, Protocol, Required, TypedDict

from perdure.core.webhooks.deliveries import Occasion
from perdure.views.decisions import DecisionInput
from perdure.views.values import Duration

__all__ = [
    "Budget",
    "CommandLimits",
    "Compaction",
    "DecisionInput",
    "FollowUps",
    "HostAllowList",
    "Permissions",
    "Price",
    "RecoveryOptions",
    "TaskHooks",
    "TaskOptions",
    "TelemetryOptions",
    "WebhookTarget",
]


class Budget(TypedDict, total=False):
    """Limits of a run with everything that it launched: `Agent(budget=)`."""

    turns: int
    tokens: int
    seconds: float
    children: int
    cost: float  # in US dollars


class Compaction(TypedDict, total=False):
    """Settings for long conversations: `Agent(compaction=)`."""

    at: float  # up to 1: a share of the context window; above 1: tokens
    keep: int  # turns at the end that are not summarized
    window: int | None  # in tokens; None: the window of the model, if known
    first: bool  # keep the first message too
    instructions: str


class Permissions(TypedDict, total=False):
    """Rules for the calls of an agent, such as `shell:cmd=rm*`: `Agent(permissions=)`."""

    deny: Sequence[str]
    ask: Sequence[str]
    allow: Sequence[str]


class FollowUps(TypedDict, total=False):
    """Follow-ups to background agents beyond completed ones: `Agent(background=)`."""

    resume_ended: bool
    queue_message: bool


class WebhookTarget(TypedDict, total=False):
    """A receiver of webhooks: an item of `Runtime(webhooks=)`."""

    url: Required[str]
    secret: str | None
    on: Sequence[Occasion]  # default: all


class TelemetryOptions(TypedDict, total=False):
    """Settings of spans: `Runtime(telemetry=)`."""

    enabled: bool
    content: bool  # also messages, arguments and results


class Price(TypedDict, total=False):
    """US dollars per million tokens of a model: a value of `Runtime(prices=)`."""

    input: Required[float]
    output: Required[float]
    cache_read: float
    cache_write: float


class RecoveryOptions(TypedDict, total=False):
    """Treatment of runs whose process stopped: `Runtime(recovery=)`."""

    running: Literal["resume", "fail"]
    poison_after: int  # stopped processes, after which a session fails as POISONED


class CommandLimits(TypedDict, total=False):
    """Limits of one command in a task; sizes are bytes, or text such as `1GiB`."""

    processes: int | None
    open_files: int | None
    file_size: int | str | None
    tmp_size: int | str | None
    disk: int | str | None
    memory: int | str | None
    cpus: float | None
    address_space: int | str | None
    timeout: Duration | None


class HostAllowList(TypedDict):
    """The hosts that commands may reach."""

    allow: Sequence[str]


class TaskHooks(Protocol):
    """Hooks of task lifecycles: a `perdure.tasks.HookRegistry`."""

    def register(self, kind: Any, fn: Callable[..., Any], priority: int = ...) -> str:
        """Add a hook and return its id."""


class TaskOptions(TypedDict, total=False):
    """Folders, hooks and commands of sandbox tasks: `Runtime(tasks=)`."""

    root: str | PathLike[str] | None
    hooks: TaskHooks | None
    sandbox: Literal["bwrap", "landlock", "none"]
    run_as: str | int | None
    allow_weak: bool
    require_sandbox: bool
    network: Literal["off", "host"] | HostAllowList
    limits: CommandLimits
    ro_paths: Sequence[str]
    env: Mapping[str, str]
