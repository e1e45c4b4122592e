"""Spans for OpenTelemetry: one trace per drive, with the model and tool calls in it.

Nothing is loaded, and nothing is spent, unless the program itself has set a tracer provider. The
names are those of the GenAI conventions; content is recorded only with `content`.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from perdure.core.conversation.messages import (
    Answer,
    AssistantMessage,
    Message,
    RequestedCall,
    UserMessage,
)
from perdure.core.log.redaction import mask_arguments
from perdure.core.options import check_options
from perdure.core.session.state import State
from perdure.core.session.usage import usage_amounts
from perdure.errors import ConfigError, PerdureError
from perdure.options import TelemetryOptions
from perdure.runtime.models.base import Request
from perdure.runtime.tools.outputs import render_result
from perdure.runtime.tools.tool import Tool
from perdure.user_code import UserCodeError

if TYPE_CHECKING:  # an optional dependency, imported only if the program has imported it
    from opentelemetry.trace import Link, Span, SpanContext, Tracer

_BY_ENVIRONMENT: Final = bool(os.environ.get("OTEL_PYTHON_TRACER_PROVIDER"))
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/gen-ai-dev/1.42.0-dev"  # of the conventions
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
    """Span of a drive; without a tracer, it does nothing."""

    def __init__(self, span: "Span | None" = None) -> None:
        self._span = span

    @property
    def trace(self) -> str | None:
        """The trace context that the next drive links to, in the format of `traceparent`."""
        if self._span is None:
            return None
        at = self._span.get_span_context()
        return f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}"

    def record_state(self, state: State) -> None:
        """Record the state of the session at the end of the drive."""
        if self._span is None:
            return
        self._span.set_attribute("perdure.state", state.status)
        if state.run is not None and state.run.error is not None:
            _fail(self._span, state.run.error.code)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Factory of spans; with `content`, they also hold messages, arguments and results."""

    enabled: bool = True
    content: bool = False

    @classmethod
    def from_options(cls, options: TelemetryOptions) -> Self:
        """Return the telemetry that a configuration describes. Raises ConfigError."""
        check_options(options, TelemetryOptions, "telemetry")
        for name, value in options.items():
            if not isinstance(value, bool):
                raise ConfigError(f"telemetry: {name} is {value!r} and must be True or False")
        return cls(**options)

    def _tracer(self) -> "Tracer | None":
        """The program's own tracer; None if it collects nothing."""
        is_loaded = "opentelemetry.trace" in sys.modules or _BY_ENVIRONMENT
        if not is_loaded or not self.enabled:
            return None
        try:
            from opentelemetry import trace
        except ImportError:
            return None
        provider = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider):
            return None
        return provider.get_tracer("perdure", _version(), schema_url=SCHEMA_URL)

    def drive(
        self, agent: str, session_id: str, before: State
    ) -> AbstractContextManager[DriveSpan]:
        """Start a trace, linked to the previous drive's and to the caller's current span."""
        tracer = self._tracer()
        if tracer is None:
            return _NO_DRIVE
        return _drive(tracer, _common("invoke_agent", agent, session_id), before)

    def chat(
        self, model: str, request: Request, *, hides: bool
    ) -> AbstractContextManager[Callable[[Answer], None]]:
        """Start the span of a model request; its callback takes the answer.

        `hides`: a tool has secret arguments, so that no content is recorded.
        """
        tracer = self._tracer()
        if tracer is None:
            return _NO_SPAN
        return _chat(tracer, model, request, shows=self.content and not hides)

    def tool(
        self, tool: Tool[..., Any], call_id: str, session_id: str, args: Mapping[str, Any]
    ) -> AbstractContextManager[Callable[[Any], None]]:
        """Start the span of a tool call; its callback takes the returned value."""
        tracer = self._tracer()
        if tracer is None:
            return _NO_SPAN
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.conversation.id": session_id,
            "gen_ai.tool.name": tool.name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call_id,
        }
        args_text = _as_text(mask_arguments(args, tool.hidden_arguments)) if self.content else None
        return _tool(tracer, attributes, args_text)


# Shared objects that do nothing: without a tracer, a span costs two calls and no allocation.
_NO_DRIVE: Final = nullcontext(DriveSpan())
_NO_SPAN: Final[AbstractContextManager[Callable[[Any], None]]] = nullcontext(lambda _: None)


@contextmanager
def _drive(tracer: "Tracer", attributes: dict[str, str], before: State) -> Iterator[DriveSpan]:
    from opentelemetry.context import Context

    if before.run is not None:
        attributes["perdure.run.id"] = before.run.id
    with tracer.start_as_current_span(
        f"invoke_agent {attributes['gen_ai.agent.name']}",
        context=Context(),
        attributes=attributes,
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
    attributes = _common("chat", request.agent, request.session_id)
    attributes["gen_ai.provider.name"] = _PROVIDERS.get(provider, provider)
    attributes["gen_ai.request.model"] = name or model
    with _span(tracer, f"chat {name or model}", attributes, is_client=True) as span:
        if shows:
            instructions = _parts(request.instructions, ())
            span.set_attribute("gen_ai.system_instructions", _json(instructions))
            span.set_attribute("gen_ai.input.messages", _json(_messages(request.messages)))

        def record(answer: Answer) -> None:
            span.set_attributes(_answer_attributes(answer))
            if shows:
                parts = _parts(answer.text, answer.calls)
                messages = [{"role": "assistant", "parts": parts}]
                span.set_attribute("gen_ai.output.messages", _json(messages))

        yield record


@contextmanager
def _tool(
    tracer: "Tracer", attributes: dict[str, str], args_text: str | None
) -> Iterator[Callable[[Any], None]]:
    with _span(tracer, f"execute_tool {attributes['gen_ai.tool.name']}", attributes) as span:
        if args_text is not None:
            span.set_attribute("gen_ai.tool.call.arguments", args_text)

        def record(value: Any) -> None:
            if args_text is not None:
                span.set_attribute("gen_ai.tool.call.result", _as_text(value))

        yield record


@contextmanager
def _span(
    tracer: "Tracer", name: str, attributes: dict[str, str], *, is_client: bool = False
) -> "Iterator[Span]":
    from opentelemetry.trace import SpanKind

    with tracer.start_as_current_span(
        name,
        kind=SpanKind.CLIENT if is_client else SpanKind.INTERNAL,
        attributes=attributes,
        record_exception=False,  # its text may be content
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except BaseException as error:
            cause = error.__cause__ if isinstance(error, UserCodeError) else error
            _fail(span, cause.code if isinstance(cause, PerdureError) else type(cause).__name__)
            raise


@cache
def _version() -> str | None:
    """Return the version of perdure; None if it is not installed, as in a frozen program."""
    try:
        return metadata.version("perdure")
    except metadata.PackageNotFoundError:
        return None


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

    contexts = [_parse_context(before), trace.get_current_span().get_span_context()]
    return [trace.Link(item) for item in contexts if item is not None and item.is_valid]


def _parse_context(text: str) -> "SpanContext | None":
    from opentelemetry.trace import SpanContext, TraceFlags

    parts = _TRACE.fullmatch(text)
    if parts is None:
        return None
    flags = TraceFlags(int(parts[3], 16))
    return SpanContext(int(parts[1], 16), int(parts[2], 16), is_remote=True, trace_flags=flags)


def _answer_attributes(answer: Answer) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for name, amount in (usage_amounts(answer.usage) or {}).items():
        if name in _USAGE:
            attributes[_USAGE[name]] = int(amount)
    if answer.response_id:
        attributes["gen_ai.response.id"] = answer.response_id
    if answer.model:
        attributes["gen_ai.response.model"] = answer.model
    if answer.stop_reason:
        attributes["gen_ai.response.finish_reasons"] = [answer.stop_reason]
    return attributes


def _messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    items = []
    for message in messages:
        if isinstance(message, UserMessage):
            parts = [{"type": "text", "content": message.content}]
            items.append({"role": "user", "parts": parts})
        elif isinstance(message, AssistantMessage):
            items.append({"role": "assistant", "parts": _parts(message.text, message.calls)})
        else:
            part = {"type": "tool_call_response", "id": message.call_id}
            items.append({"role": "tool", "parts": [{**part, "response": message.content}]})
    return items


def _parts(text: str, calls: Sequence[RequestedCall]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "text", "content": text}] if text else []
    return parts + [
        {"type": "tool_call", "id": call.id, "name": call.tool, "arguments": dict(call.params)}
        for call in calls
    ]


def _as_text(value: Any) -> str:
    """Return arguments or a result as text. Never raises: the call has already been made."""
    content = render_result(value)
    if isinstance(content, str):
        return content
    parts = [part if isinstance(part, str) else f"[file {part.media_type}]" for part in content]
    return _json(parts)


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()
