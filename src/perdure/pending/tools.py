"""Asynchronous tools that a program can start without a model."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Any, Final

from perdure.app import Runtime, service_of, tenant_of
from perdure.core.conversation.messages import (
    Answer,
    AssistantMessage,
    RequestedCall,
    ToolMessage,
    UserMessage,
)
from perdure.core.pending.record import PendingRecord, PendingResult
from perdure.core.webhooks.deliveries import Hook
from perdure.errors import ConfigError, Conflict, NotFound, Refused, ToolError
from perdure.ids import new_id, secret_id
from perdure.pending.records import json_object
from perdure.runtime.agents.agent import Agent
from perdure.runtime.inbox.sessions import NewMessage
from perdure.runtime.models.base import Request
from perdure.runtime.sessions.handle import Session
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.runtime.sessions.verbs.sessions import SessionVerbs
from perdure.runtime.tools.invoke import invoke
from perdure.runtime.tools.outputs import Deferred, parse_deferred
from perdure.runtime.tools.tool import Tool
from perdure.runtime.values import Context
from perdure.views.events import Delta
from perdure.views.values import Duration, parse_duration

AGENT: Final = "async-tools"  # owns the sessions of the calls that `execute` starts

Names = list[str]


@dataclass(frozen=True, slots=True)
class AsyncTool:
    """An asynchronous tool: `execute(input, ctx)` starts it, `ctx.pending.id` is its pending id."""

    id: str
    description: str
    parameters: Mapping[str, Any]  # JSON schema
    execute: Callable[[dict[str, Any], Context[Any]], Any]
    validate_result: Callable[[PendingResult], bool | Awaitable[bool]] | None = None
    timeout: Duration | EllipsisType | None = ...

    def as_tool(self) -> Tool[..., Any]:
        """Return it as a deferred tool, which agents accept too."""
        return Tool(
            lambda ctx: self.execute(dict(ctx.args), ctx),
            self.id,
            self.description,
            self.parameters,
            deferred=True,
            timeout=self.timeout,
            validate_result=self.validate_result,
        )


class AsyncToolRegistry:
    """Registry of asynchronous tools that a program can start without a model.

    Each call that `execute` starts has its own session, of the agent `async-tools`, so that the
    engine runs it like every deferred tool. A runtime has one registry.
    """

    def __init__(self, rt: Runtime) -> None:
        if service_of(rt).agents.find(AGENT) is not None:
            raise ConfigError(f"the runtime has an agent {AGENT!r} already", code="REGISTRY_TAKEN")
        self._rt = rt
        self._tools: dict[str, Tool[..., Any]] = {}
        self._replace_agent()

    def register(self, tool: AsyncTool | Tool[..., Any], *, replace: bool = False) -> None:
        """Register a tool. Raises Conflict if its id is taken and `replace` is false."""
        deferred_tool = tool.as_tool() if isinstance(tool, AsyncTool) else tool
        if not deferred_tool.deferred:
            raise Refused(
                f"{deferred_tool.name!r} is not asynchronous",
                code="NOT_ASYNC",
                hint="define it with @tool(deferred=True) or @tool(external=True)",
            )
        name = deferred_tool.name
        if name in self._tools and not replace:
            raise Conflict(
                f"there is an async tool {name!r}", code="TOOL_TAKEN", hint="pass replace=True"
            )
        self._tools[name] = deferred_tool
        self._replace_agent()

    def unregister(self, tool_id: str) -> bool:
        """Remove a tool and report whether it existed; calls that it started can still settle."""
        is_registered = self._tools.pop(tool_id, None) is not None
        self._replace_agent()
        return is_registered

    def is_async(self, tool_id: str) -> bool:
        """Report whether a tool of this id is registered."""
        return tool_id in self._tools

    def get(self, tool_id: str) -> Tool[..., Any] | None:
        """Return the tool, or None."""
        return self._tools.get(tool_id)

    def list(self) -> Names:
        """Return the ids of the tools."""
        return list(self._tools)

    def _replace_agent(self) -> None:
        tools = [_with_caller_timeout(tool) for tool in self._tools.values()]
        self._agent = Agent(AGENT, model=_SingleCallModel(), tools=tools)
        service_of(self._rt).agents.replace(self._agent)

    async def execute(
        self,
        tool_id: str,
        input: Mapping[str, Any],  # noqa: A002
        *,
        webhook_url: str | None = None,
        webhook_secret: str | None = None,
        timeout: Duration | EllipsisType | None = ...,  # noqa: ASYNC109 - of the call
    ) -> dict[str, Any]:
        """Start a tool and return `{async, pendingID, externalRef?, estimatedDuration?, output}`.

        The outcome of the call is delivered to `webhook_url`, which the tool sees as
        `ctx.metadata["webhookURL"]`; `webhook_secret` signs these deliveries, and callbacks.
        `timeout` overrides the tool's own. Raises NotFound, Refused, ToolError.
        """
        tool = self._tools.get(tool_id)
        if tool is None:
            raise NotFound(
                f"Async tool not found: {tool_id}",
                code="ASYNC_TOOL_NOT_FOUND",
                hint=f"register it first; registered are: {', '.join(self._tools) or 'none'}",
            )
        content = json.dumps({"tool": tool_id, "input": tool.validate(json_object(input))})
        metadata: dict[str, Any] = {} if webhook_url is None else {"webhookURL": webhook_url}
        if not isinstance(timeout, EllipsisType):
            metadata["timeout"] = 0 if timeout is None else parse_duration(timeout)
        session = self._session(metadata, webhook_url, webhook_secret)
        message = NewMessage(content, redact=bool(tool.hidden_arguments))
        await session._service.send(session._ref, message)  # noqa: SLF001 - stored already
        result = await session.run()
        pending = [event.data for event in await session.events() if event.type == "pending"]
        if not pending:
            raise ToolError(str(result.output or result.error))
        calls = service_of(self._rt).calls
        record = await calls.get(pending[0]["pendingID"], tenant_of(self._rt))
        return _started_json(record, is_external=tool.external)

    def _session(
        self, metadata: dict[str, Any], url: str | None, secret: str | None
    ) -> Session[Any]:
        """Return a new session that delivers only the events of its call to the URL."""
        notify = None
        if url is not None or secret is not None:
            notify = Hook(url or "", secret, of_call=True)
        service, agent = service_of(self._rt), self._agent.name
        tenant, name = tenant_of(self._rt) or "", new_id("s")
        return Session(
            SessionVerbs(service, Caller(tenant=tenant)),
            name,
            agent=agent,
            metadata=metadata,
            notify=notify,
        )


def _started_json(record: PendingRecord, *, is_external: bool) -> dict[str, Any]:
    if record.status == "failed":
        raise ToolError(
            record.error or "the tool could not start", details={"pendingID": record.id}
        )
    data: dict[str, Any] = {"async": True, "pendingID": record.id}
    if record.external_ref is not None:
        data["externalRef"] = record.external_ref
    if record.estimated_duration is not None:
        data["estimatedDuration"] = record.estimated_duration
    state = "is pending" if is_external else "was started"
    text = f"{record.tool} {state}; its result will be submitted as {record.id}"
    return {**data, "output": record.output or text}


def _with_caller_timeout(tool: Tool[..., Any]) -> Tool[..., Any]:
    """Return the tool with the timeout that the caller of `execute` passed.

    An external tool becomes a deferred one that starts nothing: only a start can set a deadline.
    """

    async def start(ctx: Context[Any]) -> Deferred:
        value = None if tool.external else await invoke(tool, ctx)
        deferred = parse_deferred(value, "" if ctx.pending is None else ctx.pending.id)
        limit = ctx.metadata.get("timeout")
        return deferred if limit is None else replace(deferred, timeout_ms=limit or None)

    if tool.external:
        return replace(tool, run=start, external=False, idempotent=True, _binding=None)
    return replace(tool, run=start, _binding=None)


class _SingleCallModel:
    """Model that requests the call of its user message, then returns the result as its text."""

    name = "perdure:one-call"

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """Yield the call, or the text of its result."""
        messages = request.messages
        if not any(isinstance(message, AssistantMessage) for message in messages):
            contents = [item.content for item in messages if isinstance(item, UserMessage)]
            call = json.loads(contents[0] if isinstance(contents[0], str) else "{}")
            yield Answer(calls=(RequestedCall(secret_id("call"), call["tool"], call["input"]),))
            return
        results = [item.content for item in messages if isinstance(item, ToolMessage)]
        yield Answer(text=results[-1] if results and isinstance(results[-1], str) else "")
