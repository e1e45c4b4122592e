"""Costs and summaries with the real libraries: what is kept goes back as it came."""

from collections.abc import Mapping
from typing import Any, Final

import pytest
from tests.support.models import FORMATS, NAMES, agent_at

from perdure import Runtime
from perdure.runtime.agents.prices import Prices
from perdure.runtime.models import Usage
from perdure.testing.endpoint import fake_endpoint
from perdure.testing.provider_rules import Format

TEXT: Final = "Noted."
THOUGHT: Final = {"type": "thinking", "thinking": "hm", "signature": "c2lnbmVk"}
REASONED: Final = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ZW5j"}
SAID: Final = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": TEXT, "annotations": []}],
}
# Which turn is played follows from the length of the history, which a summary changes: so all
# turns are the same one, with what the provider wants back.
TURN: Final[Mapping[Format, dict[str, Any]]] = {
    "anthropic": {
        "content": [THOUGHT, {"type": "text", "text": TEXT}],
        "usage": {"input_tokens": 4_000, "output_tokens": 20, "cache_read_input_tokens": 1_000},
    },
    "openai-chat": {
        "message": {"role": "assistant", "content": TEXT},
        "usage": {"prompt_tokens": 5_000, "completion_tokens": 20},
    },
    "openai-responses": {
        "output": [REASONED, SAID],
        "usage": {"input_tokens": 5_000, "output_tokens": 20},
    },
}


def turns(format_: Format, *failing: str) -> list[dict[str, Any]]:
    turn = TURN[format_]
    if failing and "output" in turn:  # two of them stand in one request, and thoughts are unique
        turn = {**turn, "output": [SAID]}
    return [turn, turn, {**turn, "fail": list(failing)}, turn]


@FORMATS
async def test_every_turn_has_its_price(format_: Format) -> None:
    with fake_endpoint(turns(format_)) as endpoint:
        agent = agent_at(endpoint.url, format_)
        async with Runtime("memory:", agents=[agent]) as rt:
            result = await rt.session("s", agent=agent).run("one")
            result = await rt.session("s", agent=agent).run("two")
    usage = result.usage
    assert (usage.requests, usage.input_tokens, usage.output_tokens) == (2, 10_000, 40)
    assert usage.cache_read_tokens == (2_000 if format_ == "anthropic" else 0)
    names = [name for name in Usage.__struct_fields__ if name.endswith("tokens")]
    one = Usage(**{name: getattr(usage, name) / 2 for name in names})
    priced = Prices().with_cost(one, NAMES[format_])
    assert priced.cost is not None
    assert usage.cost == pytest.approx(2 * priced.cost)
    assert usage.cost


@FORMATS
@pytest.mark.parametrize(
    "compaction,failing", [({"at": 5_000, "keep": 1}, []), ({"keep": 1}, ["context"])]
)
async def test_a_long_session_goes_on_from_a_summary(
    format_: Format, compaction: dict[str, Any], failing: list[str]
) -> None:
    """G6"""
    with fake_endpoint(turns(format_, *failing)) as endpoint:
        agent = agent_at(endpoint.url, format_, compaction=compaction)
        async with Runtime("memory:", agents=[agent]) as rt:
            for text in ("one", "two", "three"):
                await rt.session("s", agent=agent).run(text)
            result = await rt.session("s").get()
            cuts = [e.data for e in await rt.session("s").events() if e.type == "compacted"]
        assert endpoint.refused == []
        last = endpoint.requests[-1].body
    assert (result.state, result.error) == ("completed", None)
    assert [cut["summary"] for cut in cuts] == [TEXT]
    assert result.usage.requests == 4
    assert not result.usage.unpriced_requests
    told = str(last.get("messages") or last["input"])
    assert "<summary>" in told
    private = {"anthropic": "c2lnbmVk", "openai-chat": TEXT, "openai-responses": "ZW5j"}[format_]
    assert ("msg_1" if failing and "input" in last else private) in told
