"""Models that are named, `provider:model`, or given as objects of pydantic-ai.

Nothing of pydantic-ai or of a provider is imported before the model is first asked.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Protocol, runtime_checkable

import anyio.to_thread

from perdure.core.conversation.messages import Answer
from perdure.core.providers.catalog import Provider
from perdure.runtime.models.base import Delta, Request


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
        self._loop: asyncio.AbstractEventLoop | None = None

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
        opened, self._open = self._open_here(), None
        if opened is not None:
            await opened.client.aclose()

    def _open_here(self) -> Any:
        """The connection of this event loop; connections of another cannot be used, nor closed."""
        return self._open if self._loop is asyncio.get_running_loop() else None

    async def _opened(self, agent: str) -> Any:
        if self._open_here() is None:
            # The libraries take seconds to load, in which leases must be renewed.
            opened = await anyio.to_thread.run_sync(self._connect, agent)
            if self._open_here() is None:
                self._open, self._loop = opened, asyncio.get_running_loop()
            else:
                await opened.client.aclose()
        return self._open

    def _connect(self, agent: str) -> Any:
        return _connecting().connect(
            self.provider, self.model, agent, api_key=self._api_key, base_url=self._base_url
        )


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
    from perdure.runtime.models.pydantic_ai import connect as connecting  # late: loads pydantic-ai

    return connecting
