"""Sessions whose commits lose their answers on the way: found out by reading, never guessed."""

from collections import Counter
from typing import Any

import anyio
from tests.servers.plug import Loss, plugged

from perdure import Agent, Context, Result, Runtime, tool
from perdure.errors import StoreError
from perdure.testing import ScriptedModel

TURNS: list[dict[str, Any]] = [
    {"calls": [{"tool": "pay"}]},
    {"calls": [{"tool": "pay"}]},
    {"text": "paid"},
]
LOSSES: list[Loss | None] = [None, "question", None, None, "answer"] * 4
SESSIONS = [f"s{n}" for n in range(4)]


async def answered(rt: Runtime, session: str) -> Result:
    """The end of a session, asked for until there is an answer; the message counts once."""
    while True:
        try:
            return await rt.session(session, agent="shop").run("pay twice", key="once")
        except StoreError:
            await anyio.sleep(0.05)


async def test_a_lost_answer_or_question_costs_no_effect_and_repeats_none(
    postgres_url: str,
) -> None:
    """G2, G3, E8"""
    paid: Counter[str] = Counter()
    effects: list[str] = []

    @tool
    async def pay(call: Context) -> str:
        paid[call.session_id] += 1
        effects.append(call.effect_id)
        return "ok"

    results: list[Result] = []

    async def play(rt: Runtime, session: str) -> None:
        results.append(await answered(rt, session))

    agent = Agent("shop", model=ScriptedModel(TURNS), tools=[pay])
    async with plugged(postgres_url) as (plug, url), Runtime(url, agents=[agent]) as rt:
        plug.lose(*LOSSES)
        async with anyio.create_task_group() as playing:
            for session in SESSIONS:
                playing.start_soon(play, rt, session)
        plug.forget()
    assert [(one.state, one.output) for one in results] == [("completed", "paid")] * len(SESSIONS)
    assert paid == dict.fromkeys(SESSIONS, 2)
    assert len(set(effects)) == len(effects)
    assert {"question", "answer"} <= set(plug.lost)
