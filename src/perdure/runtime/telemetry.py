"""Spans for OpenTelemetry: one trace per drive, with the model and tool calls in it.

Nothing is loaded and nothing costs anything unless the program itself has set a tracer provider.
The names are those of the GenAI conventions; no content is told unless that is asked for.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from perdure.core.conversation.messages import (
    Answer,
    AskedCall,
    AssistantMessage,
    Message,
    UserMessage,
)
from perdure.core.log.redaction import masked
from perdure.core.session.state import State
from perdure.errors import ConfigError, PerdureError
from perdure.runtime.models.base import Request
from perdure.runtime.tools.outputs import render_result
from perdure.runtime.tools.tool import Tool

if TYPE_CHECKING:  # an extra, and loaded only where the program has loaded it
    from opentelemetry.trace import Link, Span, SpanContext, Tracer

_BY_ENVIRONMENT: Final = bool(os.environ.get("OTEL_PYTHON_TRACER_PROVIDER"))
_TRACE: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_PROVIDERS: Final = {"openai-responses": "openai", "google": "gcp.gemini"}
_USAGE: Final = {
    "inputTokens": "gen_ai.usage.input_tokens",
    "outputTokens": "gen_ai.usage.output_tokens",
    "cacheReadTokens": "gen_ai.usage.cache_read.input_tokens",
    "cacheWriteTokens": "gen_ai.usage.cache_creation.input_tokens",
    "reasoningTokens": "gen_ai.usage.reasoning.output_tokens",
}


class DriveSpan:
    """The span of a drive; without a tracer, nothing."""

    def __init__(self, span: "Span | None" = None) -> None:
        self._span = span

    @property
    def trace(self) -> str | None:
        """What the next drive is linked to, as `traceparent` writes it."""
        if self._span is None:
            return None
        at = self._span.get_span_context()
        return f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}"

    def ended(self, state: State) -> None:
        """How the session stands now."""
        if self._span is None:
            return
        self._span.set_attribute("perdure.state", state.status)
        if state.run is not None and state.run.error is not None:
            _fail(self._span, state.run.error.code)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Makes the spans; with `content`, they also tell what was said and returned."""

    enabled: bool = True
    content: bool = False

    @classmethod
    def of(cls, options: Mapping[str, bool]) -> Self:
        """As a configuration says it. Raises ConfigError."""
        for name, value in options.items():
            if name not in ("enabled", "content") or not isinstance(value, bool):
                raise ConfigError(
                    f"telemetry has {name!r}: {value!r}", hint="enabled and content, true or false"
                )
        return cls(**options)

    def _tracer(self) -> "Tracer | None":
        """The program's own tracer; None if it collects nothing."""
        is_known = "opentelemetry.trace" in sys.modules or _BY_ENVIRONMENT
        if not is_known or not self.enabled:
            return None
        try:
            from opentelemetry import trace
        except ImportError:
            return None
        provider = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider):
            return None
        return provider.get_tracer("perdure")

    def drive(
        self, agent: str, session_id: str, before: State
    ) -> AbstractContextManager[DriveSpan]:
        """A trace of its own, linked to that of the drive before and to who asked for this one."""
        tracer = self._tracer()
        if tracer is None:
            return _NO_DRIVE
        return _drive(tracer, _common("invoke_agent", agent, session_id), before)

    def chat(
        self, model: str, request: Request, *, hides: bool
    ) -> AbstractContextManager[Callable[[Answer], None]]:
        """A request to a model; what it answered is told. `hides`: a tool has secret arguments."""
        tracer = self._tracer()
        if tracer is None:
            return _NOT_TOLD
        return _chat(tracer, model, request, shows=self.content and not hides)

    def tool(
        self, tool: Tool[..., Any], call_id: str, session_id: str, args: Mapping[str, Any]
    ) -> AbstractContextManager[Callable[[Any], None]]:
        """A call of a tool; what it returned is told."""
        tracer = self._tracer()
        if tracer is None:
            return _NOT_TOLD
        said = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.conversation.id": session_id,
            "gen_ai.tool.name": tool.name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call_id,
        }
        shown = _shown(masked(args, tool.hidden)) if self.content else None
        return _tool(tracer, said, shown)


# What nobody collects costs two calls: these do nothing, and are used over and over.
_NO_DRIVE: Final = nullcontext(DriveSpan())
_NOT_TOLD: Final[AbstractContextManager[Callable[[Any], None]]] = nullcontext(lambda _: None)


@contextmanager
def _drive(tracer: "Tracer", said: dict[str, str], before: State) -> Iterator[DriveSpan]:
    from opentelemetry.context import Context

    if before.run is not None:
        said["perdure.run.id"] = before.run.id
    with tracer.start_as_current_span(
        f"invoke_agent {said['gen_ai.agent.name']}",
        context=Context(),
        attributes=said,
        links=_links(before.trace),
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        yield DriveSpan(span)


@contextmanager
def _chat(
    tracer: "Tracer", model: str, request: Request, *, shows: bool
) -> Iterator[Callable[[Answer], None]]:
    provider, _, name = model.partition(":")
    said = _common("chat", request.agent, request.session_id)
    said["gen_ai.provider.name"] = _PROVIDERS.get(provider, provider)
    said["gen_ai.request.model"] = name or model
    with _span(tracer, f"chat {name or model}", said, is_client=True) as span:
        if shows:
            span.set_attribute("gen_ai.system_instructions", request.instructions)
            span.set_attribute("gen_ai.input.messages", _json(_messages(request.messages)))

        def told(answer: Answer) -> None:
            span.set_attributes(_answered(answer))
            if shows:
                parts = _parts(answer.text, answer.calls)
                told = [{"role": "assistant", "parts": parts}]
                span.set_attribute("gen_ai.output.messages", _json(told))

        yield told


@contextmanager
def _tool(
    tracer: "Tracer", said: dict[str, str], shown: str | None
) -> Iterator[Callable[[Any], None]]:
    with _span(tracer, f"execute_tool {said['gen_ai.tool.name']}", said) as span:
        if shown is not None:
            span.set_attribute("gen_ai.tool.call.arguments", shown)

        def told(value: Any) -> None:
            if shown is not None:
                span.set_attribute("gen_ai.tool.call.result", _shown(value))

        yield told


@contextmanager
def _span(
    tracer: "Tracer", name: str, said: dict[str, str], *, is_client: bool = False
) -> "Iterator[Span]":
    from opentelemetry.trace import SpanKind

    with tracer.start_as_current_span(
        name,
        kind=SpanKind.CLIENT if is_client else SpanKind.INTERNAL,
        attributes=said,
        record_exception=False,  # its text is content
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except BaseException as error:
            _fail(span, error.code if isinstance(error, PerdureError) else type(error).__name__)
            raise


def _common(operation: str, agent: str, session_id: str) -> dict[str, str]:
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.agent.name": agent,
        "gen_ai.conversation.id": session_id,
    }


def _fail(span: "Span", kind: str) -> None:
    from opentelemetry.trace import StatusCode

    span.set_status(StatusCode.ERROR)
    span.set_attribute("error.type", kind)


def _links(before: str) -> "Sequence[Link]":
    from opentelemetry import trace

    found = [_context_of(before), trace.get_current_span().get_span_context()]
    return [trace.Link(one) for one in found if one is not None and one.is_valid]


def _context_of(text: str) -> "SpanContext | None":
    from opentelemetry.trace import SpanContext, TraceFlags

    parts = _TRACE.fullmatch(text)
    if parts is None:
        return None
    flags = TraceFlags(int(parts[3], 16))
    return SpanContext(int(parts[1], 16), int(parts[2], 16), is_remote=True, trace_flags=flags)


def _answered(answer: Answer) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for name, amount in (answer.usage or {}).items():
        if name in _USAGE:
            said[_USAGE[name]] = int(amount)
    if answer.model:
        said["gen_ai.response.model"] = answer.model
    if answer.stop:
        said["gen_ai.response.finish_reasons"] = [answer.stop]
    return said


def _messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    told = []
    for one in messages:
        if isinstance(one, UserMessage):
            told.append({"role": "user", "parts": [{"type": "text", "content": one.content}]})
        elif isinstance(one, AssistantMessage):
            told.append({"role": "assistant", "parts": _parts(one.text, one.calls)})
        else:
            part = {"type": "tool_call_response", "id": one.call_id, "response": one.content}
            told.append({"role": "tool", "parts": [part]})
    return told


def _parts(text: str, calls: Sequence[AskedCall]) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = [{"type": "text", "content": text}] if text else []
    return said + [
        {"type": "tool_call", "id": one.id, "name": one.tool, "arguments": dict(one.params)}
        for one in calls
    ]


def _shown(value: Any) -> str:
    """What a tool was given or returned, whatever that is; never raises: it was done."""
    shown = render_result(value)
    if isinstance(shown, str):
        return shown
    return _json([one if isinstance(one, str) else f"[file {one.media_type}]" for one in shown])


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()
