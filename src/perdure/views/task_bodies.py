"""Bodies of requests about tasks."""

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from perdure.views.bodies import Body, By, IdText, PromptIn
from perdure.views.literals import MAX_ID

_CONTROLS: Final = r"\u0000-\u001f\u007f-\u009f\u2028\u2029"
NOT_BLANK: Final = r"\S"
TASK_ID_PATTERN: Final = rf"^(?!\.\.?$)[^{_CONTROLS}/\\]*$"
OWNER_PATTERN: Final = rf"^(?=.*\S)[^{_CONTROLS}]*$"
MAX_NAME: Final = 1000
MAX_LINES: Final = 10_000  # of a log, in one request
DEFAULT_TIMEOUT_MS: Final = 60_000
MAX_TIMEOUT_MS: Final = 600_000
COMMAND_TIMEOUT_MS: Final = 30_000
LONGEST_TIMEOUT_MS: Final = 86_400_000 - 1  # that an operator can allow commands
MAX_COMMAND_BYTES: Final = 100_000  # the kernel takes arguments of 128 KiB

# The ids, names and owners that `tasks.values` accepts.
TaskId = Annotated[str, Meta(min_length=1, max_length=MAX_ID, pattern=TASK_ID_PATTERN)]
TaskName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME, pattern=NOT_BLANK)]
Owner = Annotated[str, Meta(min_length=1, max_length=MAX_ID, pattern=OWNER_PATTERN)]
Instant = Annotated[str, Meta(min_length=1, extra_json_schema={"format": "date-time"})]
Requirement = Literal[
    "exec",
    "fs",
    "net",
    "pidns",
    "syscalls",
    "kill_tree",
    "die_with_runtime",
    "nproc",
    "mem_total",
    "cpu_total",
    "disk_total",
]
FilePath = Annotated[str, Meta(pattern=r"^[^\u0000]*[^/\u0000][^\u0000]*$")]  # not blank, no NUL
# Milliseconds; a longer one counts as the maximum.
Timeout = Annotated[float, Meta(gt=0, description=f"Milliseconds, at most {MAX_TIMEOUT_MS}.")]


# What `tasks.executions.requests` accepts: it refuses the rest with its own words.
Command = Annotated[
    str,
    Meta(
        description=f"A command line for sh, of at most {MAX_COMMAND_BYTES} bytes.",
        extra_json_schema={"pattern": r"^[^\u0000]*[^\s\u0000][^\u0000]*$"},
    ),
]
CommandTimeout = Annotated[
    int | float,
    Meta(
        description="Milliseconds, at most `tasks.limits.timeout` of the server.",
        extra_json_schema={"exclusiveMinimum": 0, "maximum": LONGEST_TIMEOUT_MS},
    ),
]


class NewTaskBody(Body, frozen=True, kw_only=True):
    """Body that creates a shared task, or with `existOK` returns the one of that id."""

    name: TaskName
    kind: Literal["sandbox"] = "sandbox"
    task_id: TaskId | None = None
    owner: Owner | None = None
    metadata: dict[str, Any] | None = None
    require: list[Requirement] | None = None
    exist_ok: bool = False


class LaunchBody(Body, frozen=True, kw_only=True):
    """Body that launches a background agent; `parent` is the session that is notified."""

    agent: IdText
    prompt: PromptIn
    kind: Literal["background"] = "background"
    parent: IdText | None = None
    description: str | None = None
    key: IdText | None = None


class AgentBody(Body, frozen=True, kw_only=True):
    """Body that names an agent."""

    agent_id: IdText


class TaskCancelBody(Body, frozen=True, kw_only=True):
    """The reason of a cancellation, which a background agent records."""

    reason: str | None = None
    by: By | None = None


class ResultFields(Body, frozen=True, kw_only=True, omit_defaults=True):
    """Result of a task."""

    success: bool
    status: Literal["success", "error"] | None = None
    data: Any = None
    error: str | None = None
    message: str | None = None


class TaskResultBody(Body, frozen=True, kw_only=True):
    """Body that completes a task."""

    result: ResultFields


class TaskErrorBody(Body, frozen=True, kw_only=True):
    """Body that fails a task."""

    error: str


class LogLineIn(Body, frozen=True, kw_only=True, omit_defaults=True):
    """A log entry; without a timestamp it gets the present one."""

    message: str
    level: Literal["info", "warn", "error", "debug"] = "info"
    timestamp: Instant | None = None
    data: dict[str, Any] | None = None


class LogsBody(Body, frozen=True, kw_only=True):
    """Body that appends log entries."""

    entries: Annotated[list[LogLineIn], Meta(max_length=MAX_LINES)]


class DecisionBody(Body, frozen=True, kw_only=True):
    """Body that appends a decision."""

    agent_id: IdText
    decision: str
    reasoning: str = ""
    timestamp: Instant | None = None
    metadata: dict[str, Any] | None = None


class ResumeBody(Body, frozen=True, kw_only=True):
    """Body of a follow-up; with `block` the response has the answer, if it comes in time."""

    message: PromptIn
    block: bool = False
    timeout: Timeout = DEFAULT_TIMEOUT_MS


class CommandBody(Body, frozen=True, kw_only=True):
    """Body that runs a command. Without `wait` the answer comes at once."""

    command: Command
    timeout: CommandTimeout = COMMAND_TIMEOUT_MS
    wait: bool = True


class CheckpointBody(Body, frozen=True, kw_only=True):
    """Body that takes a checkpoint."""

    description: str | None = None


class RestoreBody(Body, frozen=True, kw_only=True):
    """Body that restores a checkpoint, or only these paths of it."""

    paths: Annotated[list[FilePath], Meta(min_length=1)] | None = None
