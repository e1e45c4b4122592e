"""From what an agent names as its model to something that answers."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from perdure.core.conversation.messages import Answer
from perdure.core.providers.catalog import PROVIDERS, RETIRED, Provider
from perdure.errors import ConfigError
from perdure.runtime.models.base import Delta, Model, Request
from perdure.runtime.models.named import GivenModel, NamedModel, PydanticAIModel
from perdure.runtime.models.scripted import ScriptedModel


def known_provider(name: str, model: str, agent: str) -> Provider:
    """The provider of that name. ConfigError if there is none."""
    provider = PROVIDERS.get(name)
    if provider is not None and model:
        return provider
    if name in RETIRED:
        raise ConfigError(
            f"agent {agent!r}: the provider {name} is gone: {RETIRED[name]}",
            code="MODEL_UNKNOWN",
            hint="name the provider of the model itself",
        )
    raise ConfigError(
        f"agent {agent!r}: the provider of {f'{name}:{model}'!r} is not known",
        code="MODEL_UNKNOWN",
        hint=f"there are scripted and {', '.join(PROVIDERS)}; or give a Model object",
        details={"agent": agent, "model": f"{name}:{model}"},
    )


def check_ready(
    provider: Provider, agent: str, *, key: str | None, base_url: str | None, llm: str | None = None
) -> None:
    """Refuse a model that could not answer: ConfigError says what to install or to set."""
    if not (_is_here("pydantic_ai") and _is_here(provider.library)):
        raise ConfigError(
            f"agent {agent!r}: the provider {provider.name} needs its library",
            code="MODEL_LIBRARY_MISSING",
            hint=provider.install,
        )
    _check_address(provider, agent, base_url, llm)
    used = key or next(filter(None, map(os.environ.get, provider.keys)), "")
    if provider.keys and not used and base_url is None:  # a server of one's own may need none
        where = f", or api_key in llms.{llm}" if llm else ""
        raise ConfigError(
            f"agent {agent!r}: the provider {provider.name} needs a key",
            code="MODEL_KEY_MISSING",
            hint=f"set {provider.keys[0]}{where}",
        )
    if not (used.isascii() and used.isprintable() and used == used.strip()):
        raise ConfigError(  # no request could carry it: it would look like a connection that fails
            f"agent {agent!r}: the key of the provider {provider.name} cannot be one",
            code="MODEL_KEY_INVALID",
            hint="it has a line break, a blank at an end or a strange character; copy it again",
        )


def _check_address(provider: Provider, agent: str, base_url: str | None, llm: str | None) -> None:
    if base_url is not None and provider.stays:
        raise ConfigError(
            f"agent {agent!r}: the provider {provider.name} takes no base_url",
            code="MODEL_ADDRESS_INVALID",
            hint="leave it out; the provider openai speaks to any compatible server",
        )
    variable = provider.address
    if variable is None or base_url is not None or os.environ.get(variable):
        return
    ways = [f"set {variable}"] if variable else []
    ways.append(f"give base_url in llms.{llm}" if llm else "give base_url, in llms of a YAML file")
    raise ConfigError(
        f"agent {agent!r}: the provider {provider.name} needs an address",
        code="MODEL_ADDRESS_MISSING",
        hint=", or ".join(ways),
    )


def _is_here(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def resolve_model(model: Any, agent: str) -> Model:
    """The model of an agent. Raises ConfigError if it could not answer."""
    if isinstance(model, Model):
        return model
    if isinstance(model, str):
        provider, _, rest = model.partition(":")
        if provider == "scripted" and rest:
            return ScriptedModel.read(Path(rest))
        return named_model(provider, rest, agent)
    if isinstance(model, PydanticAIModel):
        return GivenModel(model)
    raise ConfigError(
        f"the model of agent {agent!r} is a {type(model).__name__}, which cannot answer",
        code="MODEL_UNKNOWN",
        hint="give it as 'provider:model', or an object with name and answer()",
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
    """A provider's model; `llm` is the entry of a configuration that it comes from."""
    known = known_provider(provider, model, agent)
    check_ready(known, agent, key=api_key, base_url=base_url, llm=llm)
    return NamedModel(known, model, api_key=api_key, base_url=base_url)


class ModelWithSettings:
    """A model with settings of its own, whatever the agent's are."""

    def __init__(self, model: Model, settings: Mapping[str, Any]) -> None:
        self.model = model
        self._settings = settings

    @property
    def name(self) -> str:
        """What the log calls it."""
        return self.model.name

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """Ask for one turn."""
        async for piece in self.model.answer(replace(request, settings=self._settings)):
            yield piece


def models_of(own: Any, fallback: Any, agent: str) -> dict[str, Model]:
    """By name, the agent's own first. Raises ConfigError if one could not answer."""
    others: Sequence[Any] = fallback if isinstance(fallback, list | tuple) else (fallback,)
    models: dict[str, Model] = {}
    for one in (own, *others):
        model = resolve_model(one, agent)
        if model.name in models:
            raise ConfigError(
                f"agent {agent!r}: {model.name!r} is among its models twice", code="AGENT_INVALID"
            )
        models[model.name] = model
    return models


async def close_all(models: Mapping[str, Model]) -> None:
    """Give back the connections to their providers."""
    for one in models.values():
        model = one.model if isinstance(one, ModelWithSettings) else one
        if isinstance(model, NamedModel):
            await model.close()
