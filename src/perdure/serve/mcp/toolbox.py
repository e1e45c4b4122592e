"""Tools as MCP clients see them: their descriptions, their calls and their answers."""

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from perdure.core.roles import Permit
from perdure.errors import NotFound, PerdureError
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.serve.mcp.arguments import check_arguments

if TYPE_CHECKING:  # a server on stdio lists its tools before it imports the runtime
    from perdure.core.session.child_tasks import ChildTask
    from perdure.runtime.sessions.service import Service
    from perdure.tasks.handles import WorkRef

logger = logging.getLogger("perdure")

Json = dict[str, Any]

LIST_LIMIT: Final = 100  # rows of a list without a limit: a model reads all of them
TEXT: Final[Json] = {"type": "string"}
FILLED_TEXT: Final[Json] = {"type": "string", "minLength": 1}
COUNT: Final[Json] = {"type": "integer", "minimum": 0}
PAGE: Final[Mapping[str, Json]] = {  # the part of a list that a call asks for
    "limit": {**COUNT, "default": LIST_LIMIT, "description": "Maximum results to return."},
    "offset": {**COUNT, "default": 0, "description": "Pagination offset."},
}
READS: Final = {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False}
INTERNAL_TEXT: Final = "The server failed unexpectedly; its log has the details."
FINDINGS: Final[Json] = {
    "type": "array",
    "description": "What it waits for, why it does not move, and what to do about it.",
    "items": {"type": "object"},
}
ERROR_SCHEMA: Final[Json] = {
    "type": "object",
    "description": "What failed, if success is false.",
    "properties": {
        "code": {"type": "string"},
        "message": {"type": "string"},
        "details": {"type": "object"},
    },
}


def changes(
    *, destroys: bool = False, is_repeatable: bool = False, is_open: bool = False
) -> Mapping[str, bool]:
    """Return the annotations of a tool that changes something; an open one reaches further."""
    return {
        "readOnlyHint": False,
        "destructiveHint": destroys,
        "idempotentHint": is_repeatable,
        "openWorldHint": is_open,
    }


@dataclass(frozen=True, slots=True)
class McpOptions:
    """Options of the MCP server: how long a call may block, decisions, and links in results."""

    block_s: float = 50.0
    approve: bool = False
    links: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """Link to a resource, beside an answer."""

    uri: str
    name: str
    media_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """Answer of a tool: its fields, links to resources, and whether it is a failure."""

    fields: Json
    links: tuple[Link, ...] = ()
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class WaitTime:
    """Time that a caller wants to wait for work; without a limit of its own, as the server says."""

    limit_ms: int | None = None  # 0: it does not want to wait
    is_given: bool = False  # the caller has named the limit, so that it waits that long

    def seconds(self, options: McpOptions) -> float:
        """Return how long the call may block."""
        own = options.block_s if self.limit_ms is None else self.limit_ms / 1_000
        return min(options.block_s, own)


def _wait_as_long_as_allowed(_: Json) -> WaitTime:
    return WaitTime()


@dataclass(frozen=True, slots=True)
class LongAnswer:
    """Work that a tool has started, for which the call waits."""

    work: "WorkRef"
    reserved: "ChildTask | None" = None  # its answer is for this call alone


@dataclass(frozen=True, slots=True)
class McpCall:
    """A call of a tool by a caller, with checked arguments."""

    service: "Service"
    caller: Caller
    args: Json
    options: McpOptions = field(default_factory=McpOptions)


Run = Callable[[McpCall], Awaitable[ToolAnswer | LongAnswer]]
Outcome = Callable[[ToolAnswer], ToolAnswer]


def _same(answer: ToolAnswer) -> ToolAnswer:
    return answer


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool: what `tools/list` says of it, who may call it, and what it does."""

    name: str
    title: str
    description: str
    permit: Permit
    run: Run
    properties: Mapping[str, Any] = field(default_factory=dict)
    required: Sequence[str] = ()
    output: Mapping[str, Any] | None = None
    output_required: Sequence[str] = ("success",)
    annotations: Mapping[str, bool] = field(default_factory=dict)
    unchecked: frozenset[str] = frozenset()  # arguments that the service checks itself
    check: Callable[[Mapping[str, Any]], None] | None = None  # before the schema is applied
    is_quick: bool = False  # it never waits for work, and reports no progress
    outcome: Outcome = _same  # of its work, when it has ended; may raise a protocol's error
    wait_time: Callable[[Json], WaitTime] = _wait_as_long_as_allowed  # by its arguments

    @property
    def input_schema(self) -> Json:
        """The schema of its arguments."""
        required = {"required": list(self.required)} if self.required else {}
        return {
            "type": "object",
            "properties": dict(self.properties),
            **required,
            "additionalProperties": False,
        }

    @property
    def output_schema(self) -> Json | None:
        """The schema of its answer; a failure has `success: false` and `error`."""
        if self.output is None:
            return None
        properties = {
            "success": {"type": "boolean"},
            **self.output,
            "error": self.output.get("error", ERROR_SCHEMA),
        }
        return {
            "type": "object",
            "properties": properties,
            "required": list(self.output_required),
        }

    @property
    def description_json(self) -> Json:
        """The tool as `tools/list` describes it."""
        output = self.output_schema
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": self.input_schema,
            **({} if output is None else {"outputSchema": output}),
            "annotations": {"title": self.title, **self.annotations},
        }


class Toolbox:
    """The tools of a server, in the order of their list; aliases are callable and not listed."""

    def __init__(
        self, tools: Sequence[McpTool], aliases: Mapping[str, str], options: McpOptions
    ) -> None:
        self._tools: dict[str, McpTool] = {}
        self._aliases = aliases
        self._schemas: dict[str, Json] = {}
        self.options = options
        self.descriptions: list[Json] = []
        for tool in tools:
            self.add(tool)

    def add(self, tool: McpTool) -> None:
        """Add a tool at the end of the list."""
        self._tools[tool.name] = tool
        self._schemas[tool.name] = _checked_schema(tool)
        self.descriptions.append(tool.description_json)

    @property
    def names(self) -> list[str]:
        """The names in the list."""
        return list(self._tools)

    def is_quick(self, name: str) -> bool:
        """Return whether a tool never waits; False for an unknown one."""
        tool = self._tools.get(self._aliases.get(name, name))
        return tool is not None and tool.is_quick

    def find(self, name: str) -> McpTool:
        """Return a tool. Raises NotFound TOOL_NOT_FOUND."""
        tool = self._tools.get(self._aliases.get(name, name))
        if tool is None:
            raise NotFound(
                f"Tool '{name}' not found",
                code="TOOL_NOT_FOUND",
                hint="tools/list has the tools",
                details={"requested": name, "available": self.names},
            )
        return tool

    def check(self, caller: Caller, name: str, arguments: Any) -> Json:
        """Return the arguments of a call that the caller may make, without those that are null.

        Raises PerdureError, which TOOL_NOT_FOUND is too.
        """
        tool = self.find(name)
        caller.require(tool.permit)
        if tool.check is not None and isinstance(arguments, Mapping | None):
            tool.check(arguments or {})
        return check_arguments(name, self._schemas[tool.name], arguments)

    async def run(
        self, service: "Service", caller: Caller, name: str, args: Json
    ) -> ToolAnswer | LongAnswer:
        """Run a tool with arguments that were checked. Raises PerdureError."""
        return await self.find(name).run(McpCall(service, caller, args, self.options))


def _checked_schema(tool: McpTool) -> Json:
    """Return the schema that arguments are checked against: without what the service checks."""
    schema = tool.input_schema
    properties = schema["properties"]
    free: dict[str, Json] = {name: {} for name in tool.unchecked if name in properties}
    return {**schema, "properties": {**properties, **free}}


# Hints name commands; an MCP client needs the tool instead.
_TOOLS: Final = (
    (re.compile(r"perdure tasks list"), "list_tasks"),
    (re.compile(r"perdure tasks show (\S+)"), r"get_task_status with taskId \1"),
    (re.compile(r"perdure pending (list|show \S+)"), "list_pending"),
)
_DISCLOSED: Final = frozenset({"EXECUTION_FAILED", "SANDBOX_UNAVAILABLE"})


def failure(error: Exception) -> ToolAnswer:
    """Return the answer for a failure; an unexpected one is logged and not disclosed."""
    return ToolAnswer({"success": False, "error": error_fields(error)}, is_error=True)


def error_fields(error: Exception) -> Json:
    """Return `{code, message, details}` of an error, in the seed's form."""
    is_internal = not isinstance(error, PerdureError) or error.http_status == 500
    if not isinstance(error, PerdureError) or (is_internal and error.code not in _DISCLOSED):
        logger.error("an MCP call failed", exc_info=error)
        return {"code": "EXECUTION_FAILED", "message": INTERNAL_TEXT, "details": {}}
    details = dict(error.details)
    if error.hint and error.code != "TOOL_NOT_FOUND":  # its published form has no hint
        hint = error.hint
        for command, tool in _TOOLS:
            hint = command.sub(tool, hint)
        details["hint"] = hint
    return {"code": error.code, "message": error.message, "details": details}
