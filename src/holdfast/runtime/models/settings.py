"""What a request is asked with beside the conversation, in pydantic-ai's words."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic_ai.settings import ModelSettings

from holdfast.core.providers.catalog import Provider

_UNIFIED: Final = frozenset(ModelSettings.__annotations__)
_DEFAULTS: Final[Mapping[str | None, Mapping[str, Any]]] = {
    # Instructions, tools and the conversation so far are read from the provider's cache.
    "anthropic": {"cache": True},
    # Nothing is left at the provider, so that a session goes on when it has long forgotten it.
    "openai-responses": {"openai_store": False},
}


def settings_of(
    given: Mapping[str, Any], provider: Provider, known: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings: names of pydantic-ai as such, any other as a key of the provider's own request.

    What a model object has as `known` settings stands unless it is `given` otherwise.

    `thinking` is both: `true` or a level for every provider, an object for Anthropic's own.
    """
    family = provider.name.partition("-")[0]
    prefixes = ("openai_", f"{family}_")
    usual = _DEFAULTS.get(provider.format, {})
    made = {key: value for key, value in usual.items() if key not in known}
    body = dict(given.get("extra_body") or known.get("extra_body") or {})
    for key, value in given.items():
        own = key.startswith(prefixes) or key in _UNIFIED
        if own and not (key == "thinking" and isinstance(value, Mapping)):
            made[key] = value
        else:
            body[key] = value
    made.pop("extra_body", None)
    return {**made, "extra_body": body} if body else made


def thinks(settings: Mapping[str, Any]) -> bool:
    """Whether the model is told to think, so that an open tool loop must have begun with it."""
    body = settings.get("extra_body") or {}
    for said in (body.get("thinking"), settings.get("anthropic_thinking")):
        if isinstance(said, Mapping):
            return said.get("type") == "enabled"
    return bool(settings.get("thinking"))
