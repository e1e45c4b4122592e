"""Models that are named, `provider:model`, or given as objects of pydantic-ai.

Nothing of pydantic-ai or of a provider is imported before the model is first asked.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Protocol, runtime_checkable

import anyio.to_thread

from holdfast.core.messages import Answer
from holdfast.core.providers import Provider
from holdfast.runtime.models.base import Delta, Request


@runtime_checkable
class PydanticAIModel(Protocol):
    """A model of pydantic-ai, known by what it has."""

    @property
    def model_name(self) -> str: ...

    @property
    def system(self) -> str: ...

    @property
    def request_stream(self) -> Any: ...


class NamedModel:
    """A provider's model. `close` gives its connections back; it may be asked again afterwards."""

    def __init__(
        self,
        provider: Provider,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
    ) -> None:
        self.provider = provider
        self.model = model
        self._api_key = api_key
        self._base_url = base_url
        self._open: Any = None

    def __repr__(self) -> str:
        """Without its key."""
        return f"NamedModel({self.name!r})"

    @property
    def name(self) -> str:
        """`provider:model`, as it was named."""
        return f"{self.provider.name}:{self.model}"

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """Ask for one turn."""
        opened = await self._opened(request.agent)
        async for piece in opened.asking.answer(request):
            yield piece

    async def close(self) -> None:
        """Close the connections, if there are any."""
        opened, self._open = self._open, None
        if opened is not None and opened.loop is asyncio.get_running_loop():
            await opened.client.aclose()

    async def _opened(self, agent: str) -> Any:
        """The connection of this event loop; connections of another cannot be used, nor closed."""
        if self._open is not None and self._open.loop is asyncio.get_running_loop():
            return self._open
        connecting = await anyio.to_thread.run_sync(_connecting)  # seconds, the first time
        if self._open is None or self._open.loop is not asyncio.get_running_loop():
            self._open = connecting.connect(
                self.provider, self.model, agent, api_key=self._api_key, base_url=self._base_url
            )
        return self._open


class GivenModel:
    """A model object of pydantic-ai: its owner opened it and closes it."""

    def __init__(self, model: PydanticAIModel) -> None:
        self._model = model

    @property
    def name(self) -> str:
        """`provider:model`, as it says of itself."""
        return f"{self._model.system}:{self._model.model_name}"

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """Ask for one turn."""
        async for piece in _connecting().given(self._model).answer(request):
            yield piece


def _connecting() -> Any:
    from holdfast.runtime.models import connecting  # late: loads pydantic-ai

    return connecting
