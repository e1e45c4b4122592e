"""Agents with the providers' real libraries, connected to an endpoint on loopback."""

from typing import Any, Final

import pytest

from perdure import Agent, tool
from perdure.runtime.models.named import NamedModel
from perdure.runtime.models.resolve import named_model
from perdure.testing.provider_rules import Format

NAMES: Final[dict[Format, str]] = {
    "anthropic": "anthropic:claude-sonnet-4-6",
    "openai-chat": "openai:gpt-4.1",
    "openai-responses": "openai-responses:gpt-5",
}
FORMATS: Final = pytest.mark.parametrize("format_", NAMES)
KEY: Final = "sk-test-0451"


def model_at(url: str, format_: Format, name: str | None = None) -> NamedModel:
    """Return a model at a URL, through its provider's own library."""
    provider, _, model = (name or NAMES[format_]).partition(":")
    base_url = url if format_ == "anthropic" else f"{url}/v1"
    return named_model(provider, model, "a", api_key=KEY, base_url=base_url)


@tool
def look(
    zeal: float | None = None, also: Any = None, name: str = "", deep: dict[str, Any] | None = None
) -> str:
    """Look at something."""
    return f"saw {name}"


def agent_at(url: str, format_: Format, **more: Any) -> Agent[Any]:
    """Return an agent with the tool `look`."""
    more.setdefault("tools", [look])
    return Agent("a", model=model_at(url, format_), instructions="Look.", **more)
