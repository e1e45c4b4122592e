"""Asynchronous tools that anybody can start, without a model."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Any, Final

from perdure.app import Runtime, service_of, tenant_of
from perdure.core.conversation.messages import (
    Answer,
    AskedCall,
    AssistantMessage,
    ToolMessage,
    UserMessage,
)
from perdure.core.pending.record import PendingRecord, PendingStatus
from perdure.core.webhooks.deliveries import Hook
from perdure.errors import ConfigError, Conflict, NotFound, Refused, ToolError
from perdure.pending.records import json_object
from perdure.runtime.agents.agents import Agent
from perdure.runtime.ids import new_id, secret_id
from perdure.runtime.inbox.sessions import NewMessage
from perdure.runtime.models.base import Delta, Request
from perdure.runtime.sessions.handle import Session
from perdure.runtime.tools.invoke import invoke
from perdure.runtime.tools.outputs import Deferred, parse_deferred
from perdure.runtime.tools.tool import Tool
from perdure.runtime.values import Context, Duration, parse_duration

AGENT: Final = "async-tools"  # whose sessions hold the calls that `execute` starts

Names = list[str]


@dataclass(frozen=True, slots=True)
class AsyncTool:
    """An asynchronous tool: `execute(input, ctx)` starts it, `ctx.pending.id` is its pending id."""

    id: str
    description: str
    parameters: Mapping[str, Any]  # JSON schema
    execute: Callable[[dict[str, Any], Context[Any]], Any]
    validate_result: Callable[[str], bool] | None = None
    timeout: Duration | EllipsisType | None = ...

    def as_tool(self) -> Tool[..., Any]:
        """The same as a deferred tool, which agents take too."""
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
    """Asynchronous tools that can be started by anybody, without a model.

    A call that `execute` starts is a session of its own, of the agent `async-tools`: the engine
    that runs every deferred tool runs these. A runtime has one registry.
    """

    def __init__(self, rt: Runtime) -> None:
        if service_of(rt).agents.find(AGENT) is not None:
            raise ConfigError(f"the runtime has an agent {AGENT!r} already", code="REGISTRY_TAKEN")
        self._rt = rt
        self._tools: dict[str, Tool[..., Any]] = {}
        self._renew()

    def register(self, tool: AsyncTool | Tool[..., Any], *, replace: bool = False) -> None:
        """Make a tool known; Conflict if its id is taken and is not to be replaced."""
        made = tool.as_tool() if isinstance(tool, AsyncTool) else tool
        if not made.deferred:
            raise Refused(
                f"{made.name!r} is not asynchronous",
                code="NOT_ASYNC",
                hint="make it with @tool(deferred=True)",
            )
        if made.name in self._tools and not replace:
            raise Conflict(
                f"there is an async tool {made.name!r}", code="TOOL_TAKEN", hint="pass replace=True"
            )
        self._tools[made.name] = made
        self._renew()

    def unregister(self, tool_id: str) -> bool:
        """Forget a tool; whether it was there. What it has started can still be answered."""
        known = self._tools.pop(tool_id, None) is not None
        self._renew()
        return known

    def is_async(self, tool_id: str) -> bool:
        """Whether there is such a tool here."""
        return tool_id in self._tools

    def get(self, tool_id: str) -> Tool[..., Any] | None:
        """The tool, or None."""
        return self._tools.get(tool_id)

    def list(self) -> Names:
        """The ids of the tools."""
        return list(self._tools)

    def _renew(self) -> None:
        tools = [_startable(one) for one in self._tools.values()]
        self._agent = Agent(AGENT, model=_OneCall(), tools=tools)
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
        """Start a tool; answers `{async, pendingID, externalRef?, estimatedDuration?, output}`.

        `webhook_url` is told what becomes of the call, and the tool sees it as
        `ctx.metadata["webhookURL"]`; `webhook_secret` signs what is sent there, and what comes back
        here. `timeout` counts more than the tool's own. Raises NotFound, Refused, ToolError.
        """
        tool = self._tools.get(tool_id)
        if tool is None:
            raise NotFound(f"Async tool not found: {tool_id}", code="ASYNC_TOOL_NOT_FOUND")
        said = json.dumps({"tool": tool_id, "input": tool.validate(json_object(input))})
        metadata: dict[str, Any] = {} if webhook_url is None else {"webhookURL": webhook_url}
        if not isinstance(timeout, EllipsisType):
            metadata["timeout"] = 0 if timeout is None else parse_duration(timeout)
        session = self._session(metadata, webhook_url, webhook_secret)
        await session.tell(NewMessage(said, redact=bool(tool.hidden)))
        result = await session.run()
        opened = [one.data for one in await session.events() if one.type == "pending"]
        if not opened:
            raise ToolError(str(result.output or result.error))
        settling = service_of(self._rt).desk.settling
        return _started(await settling.pending(opened[0]["pendingID"], tenant_of(self._rt)))

    def _session(
        self, metadata: dict[str, Any], url: str | None, secret: str | None
    ) -> Session[Any]:
        """A session that tells, of its call alone, whom the caller named."""
        notify = None
        if url is not None or secret is not None:
            notify = Hook(url or "", secret, of_call=True)
        service, agent = service_of(self._rt), self._agent.name
        tenant, name = tenant_of(self._rt) or "", new_id("s")
        return Session(service, tenant, name, agent=agent, metadata=metadata, notify=notify)


def _started(record: PendingRecord) -> dict[str, Any]:
    if record.status is PendingStatus.FAILED:
        raise ToolError(record.error or "it could not start", details={"pendingID": record.id})
    told: dict[str, Any] = {"async": True, "pendingID": record.id}
    if record.external_ref is not None:
        told["externalRef"] = record.external_ref
    if record.estimated_duration is not None:
        told["estimatedDuration"] = record.estimated_duration
    waits = f"{record.tool} was started; its result comes under {record.id}"
    return {**told, "output": record.output or waits}


def _startable(tool: Tool[..., Any]) -> Tool[..., Any]:
    """The tool with the deadline that the caller of `execute` gave it."""

    async def start(ctx: Context[Any]) -> Deferred:
        said = parse_deferred(
            await invoke(tool, ctx), "" if ctx.pending is None else ctx.pending.id
        )
        limit = ctx.metadata.get("timeout")
        return said if limit is None else replace(said, timeout_ms=limit or None)

    return replace(tool, run=start, _binding=None)


class _OneCall:
    """Asks for the call that it was told of, then says its result."""

    name = "perdure:one-call"

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """The call, or what came of it."""
        if not any(isinstance(one, AssistantMessage) for one in request.messages):
            (said,) = [one.content for one in request.messages if isinstance(one, UserMessage)][:1]
            call = json.loads(said if isinstance(said, str) else "{}")
            yield Answer(calls=(AskedCall(secret_id("call"), call["tool"], call["input"]),))
            return
        results = [one.content for one in request.messages if isinstance(one, ToolMessage)]
        yield Answer(text=results[-1] if results and isinstance(results[-1], str) else "")
