"""The three wire formats: rendering a conversation for one, and a reader for its streams."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from perdure.core.conversation.repair import Canonical, canonical
from perdure.core.providers.anthropic import AnthropicReader, render_anthropic
from perdure.core.providers.catalog import Format
from perdure.core.providers.openai_chat import OpenAIChatReader, render_openai_chat
from perdure.core.providers.openai_responses import OpenAIResponsesReader, render_openai_responses
from perdure.core.providers.stream import StreamReader
from perdure.core.providers.target import Target
from perdure.errors import Refused


@dataclass(frozen=True, slots=True)
class _WireFormat:
    render: Callable[[Canonical, Target], dict[str, Any]]
    reader: Callable[[], StreamReader]
    provider: str


_FORMATS: Final[Mapping[str, _WireFormat]] = {
    "anthropic": _WireFormat(render_anthropic, AnthropicReader, "anthropic"),
    "openai-chat": _WireFormat(render_openai_chat, OpenAIChatReader, "openai"),
    "openai-responses": _WireFormat(render_openai_responses, OpenAIResponsesReader, "openai"),
}


def render(
    messages: object,
    format: Format,  # noqa: A002 - the name of the public surface
    *,
    provider: str | None = None,
    model: str | None = None,
    files: Mapping[str, str] | None = None,
    thinking: bool = False,
) -> dict[str, Any]:
    """Return the part of a request with the conversation: `messages` or `input`, and `system`.

    The provider accepts it whatever the messages are. `provider` and `model` name the receiver:
    private blocks of a response go back only to the model that sent them. `files` has the base64
    of stored files by digest. With `thinking`, an open tool loop that began without thinking is
    closed first.
    """
    if format not in _FORMATS:
        raise Refused(
            f"there is no format {format!r}",
            code="FORMAT_UNKNOWN",
            hint=f"use one of {', '.join(_FORMATS)}",
        )
    target = Target(provider or _FORMATS[format].provider, model, files or {}, thinking)
    return render_canonical(canonical(messages), format, target)


def render_canonical(conversation: Canonical, format_: Format, target: Target) -> dict[str, Any]:
    """Render a conversation that is repaired and in canonical form already."""
    return _FORMATS[format_].render(conversation, target)


def stream_reader(format_: Format) -> StreamReader:
    """Return a reader for one response."""
    return _FORMATS[format_].reader()
