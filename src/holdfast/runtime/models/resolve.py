"""From what an agent names as its model to something that answers."""

from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError
from holdfast.runtime.models.base import Model
from holdfast.runtime.models.scripted import ScriptedModel

_LATER = ("anthropic", "openai", "openai-responses", "google", "ollama")


def resolve_model(model: Any, agent: str) -> Model:
    """The model of an agent. Raises ConfigError for a provider that is not there."""
    if isinstance(model, Model):
        return model
    if not isinstance(model, str):
        raise ConfigError(
            f"the model of agent {agent!r} is a {type(model).__name__}, which cannot answer",
            code="MODEL_UNKNOWN",
            hint="give it as 'provider:model', or an object with name and answer()",
        )
    provider, _, rest = model.partition(":")
    if provider == "scripted" and rest:
        return ScriptedModel.read(Path(rest))
    later = " is not built yet" if provider in _LATER else " is not known"
    raise ConfigError(
        f"agent {agent!r}: the provider of {model!r}{later}",
        code="MODEL_UNKNOWN",
        hint="this version runs scripted:PATH and your own Model objects",
        details={"agent": agent, "model": model},
    )
