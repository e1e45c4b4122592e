"""Whatever a model called its calls: the next request is one that every provider takes."""

from typing import Any, get_args

from tests.support.runtimes import MakeRuntime
from tests.support.shop import agent

from perdure.core.conversation.messages import AssistantMessage, ToolMessage
from perdure.core.providers.catalog import Format
from perdure.core.providers.formats import render
from perdure.testing import ScriptedModel
from perdure.testing.provider_rules import check

TOOLS = [{"name": "look", "input_schema": {"type": "object"}}]


def looks(call_id: str) -> dict[str, Any]:
    return {"tool": "look", "args": {}, "id": call_id}


async def test_awkward_and_reused_ids_are_told_apart_in_the_request(runtime: MakeRuntime) -> None:
    """G6"""
    one = agent(
        {"calls": [looks("functions.look:0"), looks("x" * 80)]},
        {"calls": [looks("functions.look:0")]},
        {"text": " "},
        {"text": "done"},
    )
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("look")
        result = await rt.session("s", agent=one).run("again")
        logged = await rt.session("s").events()
    assert result.output == "done"
    assert isinstance(one.model, ScriptedModel)
    messages = one.model.requests[-1].messages
    asked = [call.id for m in messages if isinstance(m, AssistantMessage) for call in m.calls]
    told = [message.call_id for message in messages if isinstance(message, ToolMessage)]
    assert asked == told
    assert len(set(asked)) == 3
    for wanted in get_args(Format):
        body = {"max_tokens": 1, "tools": TOOLS, **render(messages, wanted)}
        assert check(body, wanted) == []
    recorded = [event.data["id"] for event in logged if event.type == "tool_call"]
    assert recorded == ["functions.look:0", "x" * 80, "functions.look:0"]
