"""The models of one agent: its own, and those that stand in for it, in order."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.core.conversation.messages import Answer
from holdfast.errors import ConfigError
from holdfast.runtime.models.base import Delta, Model, Request
from holdfast.runtime.models.named import NamedModel
from holdfast.runtime.models.resolve import resolve_model


class Tuned:
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
        model = one.model if isinstance(one, Tuned) else one
        if isinstance(model, NamedModel):
            await model.close()
