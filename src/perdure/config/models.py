"""Which model an agent means: a key of `llms`, `provider:model`, or the bare name of a model."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from perdure.config.kinds import Wrong
from perdure.config.problems import Key, did_you_mean, listed
from perdure.config.settings import ModelRef
from perdure.config.table import PROVIDERS

# How the names of well-known models begin.
_FAMILIES: Final = {
    "gpt-": "openai",
    "chatgpt-": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
    "claude-": "anthropic",
    "gemini-": "google",
}
_NOT_SCRIPTED: Final = ("model", "base_url", "api_key", "settings")


def model_of(said: Mapping[str, Any], key: Key, script: Path | None) -> ModelRef:
    """An entry of `llms`; Wrong if its keys do not go together."""
    provider = said["provider"]
    if provider == "scripted":
        if script is None:
            raise Wrong("provider scripted needs script: FILE")
        if extra := [name for name in _NOT_SCRIPTED if name in said]:
            raise Wrong(f"provider scripted takes no {listed(extra)}")
        return ModelRef(provider=provider, script=script, key=(*key, "script"))
    if "script" in said:
        raise Wrong(f"provider {provider} takes no 'script'")
    if "model" not in said:
        raise Wrong(f"provider {provider} needs model: NAME")
    return ModelRef(
        provider=provider,
        model=said["model"],
        base_url=said.get("base_url"),
        api_key=said.get("api_key"),
        settings=MappingProxyType(said.get("settings", {})),
        key=(*key, "model"),
    )


def split(name: str, llms: Mapping[str, Any]) -> tuple[str, str]:
    """The provider and the model that a name means, which is no key of `llms`; else Wrong."""
    provider, colon, model = name.partition(":")
    if colon and model:
        if provider in PROVIDERS:
            return provider, model
        near = did_you_mean(provider, PROVIDERS)
        raise Wrong(f"the provider {provider!r} is not known{near}", f"known: {_words(PROVIDERS)}")
    for beginning, family in _FAMILIES.items():
        if name.startswith(beginning):
            return family, name
    raise Wrong(
        f"{name!r} is no key of llms, and not provider:model{did_you_mean(name, llms)}",
        f"keys of llms: {_words(llms) or 'none'}",
    )


def _words(words: Any) -> str:
    return ", ".join(words)
