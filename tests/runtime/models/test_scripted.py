"""The scripted model in a process that runs for long."""

from perdure.core.conversation.messages import UserMessage
from perdure.runtime.models.base import Request
from perdure.testing import ScriptedModel


async def test_a_scripted_model_forgets_old_requests() -> None:
    model = ScriptedModel([])
    messages = [UserMessage(content="hi")] * 1_000
    for turn in range(1, 31):
        async for _ in model.answer(Request("s", "a", turn, "", messages)):
            pass
    assert [request.turn for request in model.requests] == list(range(21, 31))


async def test_a_scripted_model_keeps_the_last_request_whatever_its_length() -> None:
    model = ScriptedModel([])
    messages = [UserMessage(content="hi")] * 20_000
    async for _ in model.answer(Request("s", "a", 1, "", messages)):
        pass
    assert [request.turn for request in model.requests] == [1]
