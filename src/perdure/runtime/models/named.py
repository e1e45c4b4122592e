"""Models by name (`provider:model`) and model objects of pydantic-ai.

pydantic-ai and the library of a provider are imported at the first request.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Protocol, runtime_checkable

from perdure import host
from perdure.core.conversation.messages import Answer
from perdure.core.providers.catalog import Provider
from perdure.runtime.models.base import Request
from perdure.views.events import Delta


@runtime_checkable
class PydanticAIModel(Protocol):
    """A model of pydantic-ai, recognized by its attributes."""

    @property
    def model_name(self) -> str: ...

    @property
    def system(self) -> str: ...

    @property
    def request_stream(self) -> Any: ...


class NamedModel:
    """Model of a provider. `close` closes its connections; the next request opens new ones."""

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
        self._connection: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        """Return the name, without the key."""
        return f"NamedModel({self.name!r})"

    @property
    def name(self) -> str:
        """Name of the form `provider:model`."""
        return f"{self.provider.name}:{self.model}"

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """Request one turn."""
        connection = await self._connect(request.agent)
        async for item in connection.model_request.answer(request):
            yield item

    async def close(self) -> None:
        """Close the connections, if there are any."""
        connection, self._connection = self._usable_connection(), None
        if connection is not None:
            await connection.client.aclose()

    def _usable_connection(self) -> Any:
        """Return the connection of this event loop; that of another cannot be used, nor closed."""
        return self._connection if self._loop is asyncio.get_running_loop() else None

    async def _connect(self, agent: str) -> Any:
        if self._usable_connection() is None:
            # The libraries take seconds to load, and leases must be renewed meanwhile.
            connection = await host.run_in_thread(self._open, agent)
            if self._usable_connection() is None:
                self._connection, self._loop = connection, asyncio.get_running_loop()
            else:
                await connection.client.aclose()
        return self._connection

    def _open(self, agent: str) -> Any:
        return _connect_module().connect(
            self.provider, self.model, agent, api_key=self._api_key, base_url=self._base_url
        )


class ModelObject:
    """A model object of pydantic-ai, opened and closed by its owner."""

    def __init__(self, model: PydanticAIModel) -> None:
        self._model = model

    @property
    def name(self) -> str:
        """Name of the form `provider:model`, from its attributes."""
        return f"{self._model.system}:{self._model.model_name}"

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """Request one turn."""
        async for item in _connect_module().wrap_model(self._model).answer(request):
            yield item


def _connect_module() -> Any:
    from perdure.runtime.models.pydantic_ai import connect  # late: loads pydantic-ai

    return connect
