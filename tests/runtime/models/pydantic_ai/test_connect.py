"""How a named model opens its connections: late, beside the event loop, and once."""

import threading
from typing import Any

import anyio
import pytest
from tests.support.models import FORMATS, model_at

from perdure.core.conversation.messages import Answer, UserMessage
from perdure.runtime.models.base import Request
from perdure.runtime.models.pydantic_ai import connect as connecting
from perdure.testing.endpoint import fake_endpoint
from perdure.testing.provider_rules import Format


@FORMATS
async def test_libraries_are_loaded_beside_the_loop_and_connections_shared(
    format_: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G5: a worker that loads for seconds renews its leases meanwhile."""
    opened: list[Any] = []
    threads: list[threading.Thread] = []

    def connect(*given: Any, **more: Any) -> Any:
        threads.append(threading.current_thread())
        opened.append(real(*given, **more))
        return opened[-1]

    real = connecting.connect
    monkeypatch.setattr(connecting, "connect", connect)
    said: list[str] = []
    with fake_endpoint([{"text": "hello"}]) as endpoint:
        model = model_at(endpoint.url, format_)
        asked = Request("s", "a", 1, "", [UserMessage("hi")])

        async def ask() -> None:
            pieces = [piece async for piece in model.answer(asked)]
            said.extend(piece.text for piece in pieces if isinstance(piece, Answer))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(ask)
        await ask()
        assert said == ["hello"] * 4
        assert threading.main_thread() not in threads
        still = [one for one in opened if not one.client.is_closed]
        assert len(still) == 1
        await model.close()
        assert still[0].client.is_closed
        await ask()
        await model.close()
    assert all(one.client.is_closed for one in opened)
