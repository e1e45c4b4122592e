"""Resolving the models of an agent: names, model objects and fallbacks."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from perdure.core.conversation.messages import Answer
from perdure.core.providers.catalog import PROVIDERS, RETIRED, Provider, default_provider
from perdure.core.text import did_you_mean
from perdure.errors import ConfigError
from perdure.runtime.models.base import Model, Request
from perdure.runtime.models.named import ModelObject, NamedModel, PydanticAIModel
from perdure.views.events import Delta


def find_provider(name: str, model: str, agent: str) -> Provider:
    """Return the provider of that name. Raises ConfigError if there is none."""
    provider = PROVIDERS.get(name)
    if provider is not None and model:
        return provider
    if name in RETIRED:
        raise ConfigError(
            f"agent {agent!r}: the provider {name} no longer exists: {RETIRED[name]}",
            code="MODEL_UNKNOWN",
            hint="use the provider of the model itself",
        )
    full_name = f"{name}:{model}" if model else name
    if provider is None and model:
        problem = f"there is no provider {name!r}{did_you_mean(name, ('scripted', *PROVIDERS))}"
    elif provider is not None:
        problem = f"the model of the provider {name} is missing"
    else:
        problem = f"{full_name!r} does not name a provider and a model{_similar_model(name)}"
    raise ConfigError(
        f"agent {agent!r}: {problem}",
        code="MODEL_UNKNOWN",
        hint=f"write provider:model; providers: scripted, {', '.join(PROVIDERS)}; or pass a Model",
        details={"agent": agent, "model": full_name},
    )


def _similar_model(name: str) -> str:
    """Return a suggestion for a bare name that is almost that of a well-known model."""
    head, dash, rest = name.partition("-")
    suggestion = did_you_mean(head, ("gpt", "claude", "gemini")) if dash else ""
    return suggestion.replace("'?", f"-{rest}'?")


def check_ready(
    provider: Provider, agent: str, *, key: str | None, base_url: str | None, llm: str | None = None
) -> None:
    """Raise ConfigError, with what to install or to set, if the model could not respond."""
    if not (_is_installed("pydantic_ai") and _is_installed(provider.library)):
        raise ConfigError(
            f"agent {agent!r}: the library for the provider {provider.name} is not installed",
            code="MODEL_LIBRARY_MISSING",
            hint=provider.install_command,
        )
    _check_address(provider, agent, base_url, llm)
    value = key or next(filter(None, map(os.environ.get, provider.keys)), "")
    if provider.keys and not value and base_url is None:  # a server of the user may need none
        alternative = f", or api_key in llms.{llm}" if llm else ""
        raise ConfigError(
            f"agent {agent!r}: the provider {provider.name} needs a key",
            code="MODEL_KEY_MISSING",
            hint=f"set {provider.keys[0]}{alternative}",
        )
    if not (value.isascii() and value.isprintable() and value == value.strip()):
        raise ConfigError(  # HTTP cannot send it: it would look like a failed connection
            f"agent {agent!r}: the key for the provider {provider.name} is not valid",
            code="MODEL_KEY_INVALID",
            hint="it has a line break, a space at an end or a non-ASCII character; copy it again",
        )


def _check_address(provider: Provider, agent: str, base_url: str | None, llm: str | None) -> None:
    if base_url is not None and provider.has_fixed_url:
        raise ConfigError(
            f"agent {agent!r}: the provider {provider.name} does not accept a base_url",
            code="MODEL_ADDRESS_INVALID",
            hint="leave it out; for a compatible server use the provider openai",
        )
    variable = provider.address
    if variable is None or base_url is not None or os.environ.get(variable):
        return
    hints = [f"set {variable}"] if variable else []
    hints.append(f"set base_url in llms.{llm}" if llm else "set base_url in llms of a YAML file")
    raise ConfigError(
        f"agent {agent!r}: the provider {provider.name} needs an address",
        code="MODEL_ADDRESS_MISSING",
        hint=", or ".join(hints),
    )


def _is_installed(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def resolve_model(model: Any, agent: str) -> Model:
    """Return the model of an agent. Raises ConfigError if it could not respond."""
    if isinstance(model, Model):
        return model
    if isinstance(model, str):
        provider, colon, rest = model.partition(":")
        if provider == "scripted" and rest:
            from perdure.runtime.models.scripted import ScriptedModel

            return ScriptedModel.read(Path(rest))
        if not colon and (default := default_provider(model)) is not None:
            provider, rest = default, model
        return named_model(provider, rest, agent)
    if isinstance(model, PydanticAIModel):
        return ModelObject(model)
    raise ConfigError(
        f"the model of agent {agent!r} is not a model; its type is {type(model).__name__}",
        code="MODEL_UNKNOWN",
        hint="use 'provider:model', or an object with name and answer()",
    )


def named_model(
    provider: str,
    model: str,
    agent: str,
    *,
    api_key: str | None = None,
    base_url: str | None = None,
    llm: str | None = None,
) -> NamedModel:
    """Return the model of a provider; `llm` is its entry in a configuration."""
    entry = find_provider(provider, model, agent)
    check_ready(entry, agent, key=api_key, base_url=base_url, llm=llm)
    return NamedModel(entry, model, api_key=api_key, base_url=base_url)


class ModelWithSettings:
    """A model with settings of its own, which replace those of the agent."""

    def __init__(self, model: Model, settings: Mapping[str, Any]) -> None:
        self.model = model
        self._settings = settings

    @property
    def name(self) -> str:
        """Name of the model itself."""
        return self.model.name

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """Request one turn."""
        async for item in self.model.answer(replace(request, settings=self._settings)):
            yield item


def resolve_models(primary: Any, fallback: Any, agent: str) -> dict[str, Model]:
    """Return models by name, the primary one first. Raises ConfigError if one could not respond."""
    fallbacks: Sequence[Any] = fallback if isinstance(fallback, list | tuple) else (fallback,)
    models: dict[str, Model] = {}
    for candidate in (primary, *fallbacks):
        model = resolve_model(candidate, agent)
        if model.name in models:
            raise ConfigError(
                f"agent {agent!r}: {model.name!r} occurs twice among its models",
                code="AGENT_INVALID",
            )
        models[model.name] = model
    return models


async def close_all(models: Mapping[str, Model]) -> None:
    """Close the connections of the models."""
    for model in models.values():
        inner = model.model if isinstance(model, ModelWithSettings) else model
        if isinstance(inner, NamedModel):
            await inner.close()
