"""Providers that fail for a while, or for good, and the session that goes on all the same."""

from typing import Any

import pytest
from tests.stories.test_model_retries import time_passes
from tests.support.models import FORMATS, agent_at, model_at

from perdure import Delta, Event, Runtime
from perdure.runtime.engine import driver as engine
from perdure.runtime.sessions import runs
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock
from perdure.testing.endpoint import fake_endpoint
from perdure.testing.provider_rules import Format

CALL = {"tool": "look", "args": {"zeal": 1.0, "name": "ü"}, "id": "call_1"}


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CLOCK_CHECK_S", 0.005)
    monkeypatch.setattr(runs, "FOLLOW_S", 0.005)


def turns(*fail: Any) -> list[dict[str, Any]]:
    return [{"text": "I look.", "calls": [CALL]}, {"text": "Seen it all.", "fail": list(fail)}]


@FORMATS
async def test_a_turn_is_asked_for_until_it_comes_and_no_other_again(format_: Format) -> None:
    """S0.25"""
    clock = ManualClock()
    failures = [
        {"fail": "rate_limit", "retry_after": 40},
        "server_error",
        {"fail": "cut", "after": 4},
    ]
    with fake_endpoint(turns(*failures)) as endpoint:
        one = agent_at(endpoint.url, format_)
        async with Runtime(MemoryStore(clock), agents=[one]) as rt, time_passes(clock):
            began = clock.now()
            items = [item async for item in rt.session("s", agent=one).stream("Look")]
            result = await rt.session("s").get()
        asked = len(endpoint.requests)
    assert (result.state, result.output) == ("completed", "Seen it all.")
    found = [item.data for item in items if isinstance(item, Event) and item.type == "retry"]
    assert [one["attempt"] for one in found] == [1, 2, 3]
    assert found[0]["next"] >= began + 40_000
    assert asked == 5  # the first turn once
    text = ""
    for item in items:
        if isinstance(item, Delta) and item.turn == 2:
            text = "" if item.kind == "reset" else text + item.text
    assert text == "Seen it all."


@FORMATS
async def test_a_model_of_another_provider_goes_on_with_what_was_said(format_: Format) -> None:
    other: Format = "openai-chat" if format_ == "anthropic" else "anthropic"
    with fake_endpoint(turns("quota")) as endpoint:
        spare = model_at(endpoint.url, other)
        one = agent_at(endpoint.url, format_, fallback=spare)
        async with Runtime(MemoryStore(), agents=[one]) as rt:
            result = await rt.session("s", agent=one).run("Look")
            events = await rt.session("s").events()
    assert (result.state, result.output) == ("completed", "Seen it all.")
    (retry,) = [one.data for one in events if one.type == "retry"]
    assert retry["model"] == spare.name
    providers = [one.data["provider"] for one in events if one.type == "assistant"]
    assert len(set(providers)) == 2


@FORMATS
async def test_what_stays_wrong_is_told_and_the_session_goes_on_after_the_fix(
    format_: Format,
) -> None:
    with fake_endpoint(turns("key")) as endpoint:
        one = agent_at(endpoint.url, format_)
        async with Runtime(MemoryStore(), agents=[one]) as rt:
            result = await rt.session("s", agent=one).run("Look")
            assert result.error is not None
            assert (result.state, result.error.code) == ("failed", "MODEL_KEY")
            assert result.error.hint
            assert (await rt.session("s", agent=one).run()).output == "Seen it all."
        assert len(endpoint.requests) == 3
