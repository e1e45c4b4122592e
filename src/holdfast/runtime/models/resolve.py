"""From what an agent names as its model to something that answers."""

from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError
from holdfast.runtime.models.base import Model
from holdfast.runtime.models.named import GivenModel, NamedModel, PydanticAIModel
from holdfast.runtime.models.providers import check_ready, known_provider
from holdfast.runtime.models.scripted import ScriptedModel


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
