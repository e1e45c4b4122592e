"""One door to the renderers."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from perdure.core.conversation.repair import Canonical, canonical
from perdure.core.providers.anthropic import render_anthropic
from perdure.core.providers.openai_chat import render_openai_chat
from perdure.core.providers.openai_responses import render_openai_responses
from perdure.core.providers.target import Message, Target
from perdure.errors import Refused

Format = Literal["anthropic", "openai-chat", "openai-responses"]
Renderer = Callable[[list[tuple[Message, bool]], Target], dict[str, Any]]

_RENDERERS: Final[Mapping[str, tuple[Renderer, str]]] = {
    "anthropic": (render_anthropic, "anthropic"),
    "openai-chat": (render_openai_chat, "openai"),
    "openai-responses": (render_openai_responses, "openai"),
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
    """The part of a request that holds the conversation: `messages`, or `input`, and `system`.

    Whatever the messages are, the provider takes it. `provider` and `model` say who will read it:
    an answer's private blocks are sent only to the same. `files` has the base64 of stored files by
    digest. With `thinking` an open tool loop that cannot go on thinking is closed first.
    """
    if format not in _RENDERERS:
        raise Refused(
            f"there is no format {format!r}",
            code="FORMAT_UNKNOWN",
            hint=f"there are {', '.join(_RENDERERS)}",
        )
    home = _RENDERERS[format][1]
    return rendered(
        canonical(messages), format, Target(provider or home, model, files or {}, thinking)
    )


def rendered(told: Canonical, format_: Format, target: Target) -> dict[str, Any]:
    """The same of a conversation that is repaired and taken apart already."""
    return _RENDERERS[format_][0](told, target)
