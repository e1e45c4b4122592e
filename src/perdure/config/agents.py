"""Agents of a configuration, with the models, tools and MCP servers that they name."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, PrivateAttr, Tag, model_validator

from perdure.config.blocks import Block, Free, Many, NamedBlock, Names, OrBlock, OrMany
from perdure.config.problems import InvalidValue, Key, quoted_list
from perdure.config.reader import Scalar, YamlBlock
from perdure.config.stores import SqlConfig
from perdure.config.values import (
    Amount,
    Choice,
    Count,
    Duration,
    DurationOrNone,
    ExistingFile,
    FileText,
    Flag,
    FolderPath,
    Hidden,
    ObjectName,
    OpenUrl,
    OutputType,
    Positive,
    Rule,
    Single,
    Text,
    Url,
    built_in_or_object,
    integer,
)
from perdure.core.providers import catalog
from perdure.views.literals import DecisionKind, OnCrash

BUILT_IN: Final = ("ask_user", "wait", "todo_write", "execute_command")
HitlMode = Literal["auto", "blocking", "async"]
WaitMode = Literal["blocking", "async"]
WhileWaiting = Literal["queue", "reject", "cancel_calls"]
PROVIDERS: Final = ("scripted", *catalog.PROVIDERS)


class ModelRef(NamedBlock):
    """Model: an entry of `llms`, or a name. The scripted one has a `script`, others a `model`."""

    provider: Annotated[str, Choice("provider", PROVIDERS)]
    model: Text | None = None
    script: ExistingFile | None = None
    base_url: OpenUrl | None = None
    api_key: Hidden[Text | None] = None
    settings: Hidden[Free] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.provider == "scripted":
            if self.script is None:
                raise InvalidValue("provider scripted needs script: FILE")
            if extra := list(self.present("provider", "script")):
                raise InvalidValue(f"provider scripted does not take {quoted_list(extra)}")
        elif self.script is not None:
            raise InvalidValue(f"provider {self.provider} does not take 'script'")
        elif self.model is None:
            raise InvalidValue(f"provider {self.provider} needs model: NAME")
        return self

    @property
    def model_key(self) -> Key:
        """Place where it is named."""
        is_entry = self.key[:1] == ("llms",)
        return (*self.key, "script" if self.script else "model") if is_entry else self.key

    def at(self, key: Key) -> Self:
        """Return it with the place where an agent names it."""
        self._key = key
        return self


class PriceConfig(Block):
    """US dollars per million tokens."""

    input: Amount
    output: Amount
    cache_read: Amount = 0
    cache_write: Amount = 0


class McpServerConfig(NamedBlock):
    """MCP server: a program to start, or a URL."""

    either: ClassVar = ("command", "url")
    command: Hidden[Many[Text]] = ()
    env: Hidden[Names] = Field(default_factory=dict)
    cwd: FolderPath | None = None
    url: Hidden[Url | None] = None
    headers: Hidden[Names] = Field(default_factory=dict)
    idle_timeout: Duration | None = None
    connect_timeout: Duration | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.command and self.url is None:
            raise InvalidValue("needs command: [PROGRAM, …] or url: URL")
        excluded = ("env", "cwd") if self.url else ("headers",)
        for word in excluded:
            if word in self.model_fields_set:
                kind = "url" if self.url else "command"
                raise InvalidValue(f"a server with {kind!r} does not take {word!r}")
        return self


class PolicyConfig(Block):
    """Approvers of calls, and what they may decide."""

    allowed_decisions: Many[Annotated[DecisionKind, Choice("decision")]] = ()
    approvers: Many[Text] = ()
    min_approvals: Count = 1
    not_by_starter: Flag = False


class ToolRef(PolicyConfig):
    """Tool by `module:name` or built-in name; its other keys override the tool's."""

    use: ObjectName
    name: Text | None = None
    description: Text | None = None
    requires_approval: Flag = False
    approval_prompt: Text | None = None
    approval_timeout: DurationOrNone = None
    deferred: Flag = False
    external: Flag = False
    timeout: DurationOrNone = None
    idempotent: Flag = False
    on_crash: Annotated[OnCrash, Choice("on_crash")] = "tell"
    aliases: Many[Text] = ()
    redact: Many[Text] = ()
    _is_word: bool = PrivateAttr(default=False)

    @property
    def target(self) -> str:
        """`module:name`, or the name of a tool that comes with perdure."""
        return self.use

    @property
    def target_key(self) -> Key:
        """Place of the target in the file."""
        return self.key if self._is_word else (*self.key, "use")

    @property
    def is_built_in(self) -> bool:
        """True if the tool comes with perdure."""
        return ":" not in self.use

    @property
    def options(self) -> Mapping[str, Any]:
        """Keyword arguments that override the tool's."""
        return self.present("use")

    @classmethod
    def named(cls, scalar: Scalar) -> Self:
        """Return the tool that a single word names."""
        tool = cls.model_construct(use=_BUILT_IN_OR_OBJECT.parse(scalar))
        tool._key = scalar.key  # noqa: SLF001 - its own
        tool._is_word = True  # noqa: SLF001 - its own
        return tool


_BUILT_IN_OR_OBJECT: Final = built_in_or_object(BUILT_IN)


class McpTools(PolicyConfig):
    """Tools of an MCP server."""

    mcp: Text
    only: Many[Text] = ()
    requires_approval: OrMany[Flag, Text] = False
    approval_timeout: DurationOrNone = None
    idempotent: OrMany[Flag, Text] = False
    on_crash: Annotated[Literal["tell", "ask"], Choice("on_crash")] = "tell"
    timeout: DurationOrNone = None
    prefix: Text | None = None

    @property
    def options(self) -> Mapping[str, Any]:
        """Keyword arguments of `MCPTools`."""
        return self.present("mcp")


def _tool_branch(node: Any) -> str:
    if not isinstance(node, YamlBlock):
        return "<single>"
    return "<use>" if "use" in node else "<mcp>"


def _one_tool(node: Any) -> Any:
    if isinstance(node, YamlBlock) and "use" not in node and "mcp" not in node:
        raise InvalidValue("needs one of the keys 'use' or 'mcp'")
    return node


ToolEntry = Annotated[
    Annotated[ToolRef, Single(ToolRef.named, _BUILT_IN_OR_OBJECT.schema), Tag("<single>")]
    | Annotated[ToolRef, Tag("<use>")]
    | Annotated[McpTools, Tag("<mcp>")],
    Discriminator(_tool_branch),
    BeforeValidator(_one_tool),
]


class HitlConfig(Block):
    """Waits of an agent for approvers."""

    mode: Annotated[HitlMode, Choice("hitl.mode", empty="auto")] = "auto"


class AgentTaskConfig(Block):
    """Options of an agent's runs: concurrency, time limits, and waits for approvers."""

    backend: Annotated[Literal["memory", "sql"], Choice("backend")] = "memory"  # has no effect
    worker_pool: Count | None = None
    sql: Hidden[SqlConfig | None] = None
    input_timeout: Duration | None = None  # None: no deadline (blocking: 600 s)
    timeout: Duration | None = None
    hitl: HitlConfig = HitlConfig()
    on_expire: Annotated[Literal["fail", "cancel", "keep"], Choice("on_expire")] = "fail"
    expire_grace: Duration = timedelta(0)  # before `cancel` acts

    @property
    def has_backend(self) -> bool:
        """True if the file says where tasks are stored."""
        return not self.model_fields_set.isdisjoint(("backend", "sql"))


class PermissionsConfig(Block):
    """Rules for the calls of an agent."""

    deny: Many[Rule] = ()
    ask: Many[Rule] = ()
    allow: Many[Rule] = ()


class FollowUpsConfig(Block):
    """Follow-ups to background agents beyond completed ones."""

    resume_ended: Flag = False
    queue_message: Flag = False


class BudgetConfig(Block):
    """Limits of a run with everything that it launched."""

    turns: Count | None = None
    tokens: Count | None = None
    seconds: Positive | None = None
    children: Count | None = None
    cost: Positive | None = None


class CompactionConfig(Block):
    """Settings for long conversations."""

    at: Positive | None = None
    keep: Count | None = None
    window: Count | None = None
    first: Flag = False
    instructions: Text = ""


class AgentConfig(NamedBlock):
    """Agent with the options of `Agent`; tools and types are names, not imported yet."""

    either: ClassVar = ("instructions", "instructions_file")
    llm: Text
    fallback: OrMany[Text, Text] = ()
    retries: Annotated[int, integer(0)] = 6
    description: Text = ""
    instructions: Text = ""
    instructions_file: FileText = ""  # its content
    session_store: Text | None = None
    task: AgentTaskConfig = AgentTaskConfig()
    permissions: PermissionsConfig = PermissionsConfig()
    tools: Many[ToolEntry] = ()
    sub_agents: Many[Text] = ()
    background: FollowUpsConfig = FollowUpsConfig()
    max_turns: Count = 100
    queue: Text = "default"
    show_thinking: Flag = False
    budget: BudgetConfig = BudgetConfig()
    compaction: OrBlock[Flag, CompactionConfig] = True
    output_type: OutputType | None = None  # module:Class, or a file with a JSON schema
    while_waiting: Annotated[WhileWaiting, Choice("while_waiting")] = "queue"
    aliases: Many[Text] = ()
    _models: tuple[ModelRef, ...] = PrivateAttr(())
    _waits: WaitMode = PrivateAttr("async")

    @property
    def models(self) -> tuple[ModelRef, ...]:
        """Its model, and those that stand in for it."""
        return self._models

    @property
    def waits(self) -> WaitMode:
        """Wait mode, which follows from `task.hitl` and the session store."""
        return self._waits

    def link(self, models: Sequence[ModelRef], waits: WaitMode) -> None:
        """Complete it with what it names elsewhere in the file."""
        self._models = tuple(models)
        self._waits = waits
