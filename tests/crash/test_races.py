"""Eight processes answer one call at the same moment: one is accepted, the others are told."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.crash.agents import Place, make_agent
from tests.crash.harness import Child

from perdure import Agent, PendingCall, Runtime, tool

PROCESSES = 8
AHEAD_S = 0.02  # enough to tell all of them before the moment comes


@pytest.fixture(scope="session")
def responders() -> Iterator[list[Child]]:
    """The processes, which go from one database to the next."""
    started = [Child("respond") for _ in range(PROCESSES)]
    yield started
    for child in started:
        child.end()


@pytest.fixture
def crowd(responders: list[Child], place: Place) -> list[Child]:
    for child in responders:
        child.tell({"url": place.url})
    for child in responders:
        assert child.says() == {"ready": True}
    return responders


def at_once(
    crowd: list[Child], jobs: list[dict[str, Any]], at: float | None = None
) -> list[dict[str, Any]]:
    """Let everybody do its job at one instant of the machine's clock; answers what they say."""
    moment = time.monotonic() + AHEAD_S if at is None else at
    for child, job in zip(crowd, jobs, strict=True):
        child.tell({"at": moment, **job})
    return [child.says() for child in crowd]


def answer(pending_id: str, verb: str, by: str, *args: str) -> dict[str, Any]:
    return {"id": pending_id, "verb": verb, "by": by, "args": args}


async def test_of_eight_decisions_one_wins_and_its_effect_happens_once(
    crowd: list[Child], place: Place
) -> None:
    """S0.35, S4.29: approvals and denials, two of them by the same person."""
    agent = make_agent(place, "refund")
    async with Runtime(place.url, agents=[agent], deps=place) as rt:
        for turn in range(15):
            session = rt.session(f"s{turn}", agent=agent)
            (call,) = (await session.run("go")).pending
            people = ["ana", "ana", "ben", "cleo", "dan", "eve", "fay", "gus"]
            verbs = ["approve", "deny"] if turn % 2 else ["approve"]
            jobs = [
                answer(call.id, verbs[n % len(verbs)], by) for n, by in enumerate(people, turn % 3)
            ]
            said = at_once(crowd, jobs)
            result = await session.run()
            check_decided(said, jobs, [e for e in await session.events() if e.type == "decision"])
            approved = "approve" in [
                job["verb"] for job, told in zip(jobs, said, strict=True) if told["won"]
            ]
            done = [line for line in place.effects() if line["effect"] == call.effect_id]
            assert (result.output, len(done)) == ("all done", int(approved))


def check_decided(said: list[dict[str, Any]], jobs: list[dict[str, Any]], log: list[Any]) -> None:
    """One decision is recorded; who said the same is a duplicate, all others know the winner."""
    (decision,) = log
    by, kind = decision.data["by"], decision.data["kind"]
    for job, told in zip(jobs, said, strict=True):
        if told["won"]:
            assert (job["by"], job["verb"]) == (by, kind)
        else:
            assert (told["winner"]["by"], told["winner"]["kind"]) == (by, kind)
    assert any(told["won"] for told in said)


async def test_of_eight_results_one_is_what_the_model_sees(
    crowd: list[Child], place: Place
) -> None:
    """S0.35: the session goes on once, with the result that won."""
    agent = make_agent(place, "deploy")
    async with Runtime(place.url, agents=[agent], deps=place) as rt:
        for turn in range(15):
            session = rt.session(f"s{turn}", agent=agent)
            (call,) = (await session.run("go")).pending
            jobs = [answer(call.id, "result", f"p{n}", f"result {n}") for n in range(PROCESSES)]
            said = at_once(crowd, jobs)
            assert (await session.run()).output == "all done"
            (winner,) = [n for n, told in enumerate(said) if told["won"]]
            results = [e.data["result"] for e in await session.events() if e.type == "tool_result"]
            assert results == [f"result {winner}"]
            assert {told["winner"]["by"] for told in said if not told["won"]} == {f"p{winner}"}
        assert place.asked().count(1) == 15


@tool(deferred=True, timeout="250ms")
async def brief(call: PendingCall) -> str:
    return "ref"


async def test_a_result_at_the_very_deadline_wins_or_has_expired(
    crowd: list[Child], place: Place
) -> None:
    """S0.64, S0.73: four processes bring the result while four expire the call."""
    agent = Agent("a", model=make_agent(place, "brief").model, tools=[brief])
    ends = set()
    async with Runtime(place.url, agents=[agent], deps=place) as rt:
        for turn in range(10):
            session = rt.session(f"s{turn}", agent=agent)
            (call,) = (await session.run("go")).pending
            assert call.expires_at is not None
            due = time.monotonic() + call.expires_at.timestamp() - time.time()
            jobs = [answer(call.id, "result", f"p{n}", "same") for n in range(4)]
            jobs += [answer(call.id, "expire", "") for _ in range(4)]
            said = at_once(crowd, jobs, at=due + (turn - 5) / 1000)
            time.sleep(max(0.0, due + 0.01 - time.monotonic()))  # noqa: ASYNC251 - past the deadline
            await session.run()
            (settled,) = [e for e in await session.events() if e.type == "settled"]
            (result,) = [e for e in await session.events() if e.type == "tool_result"]
            status = settled.data["status"]
            ends.add(status)
            won = [told["won"] for told in said[:4]]
            expired = sum(call.id in told["expired"] for told in said[4:])
            if status == "completed":
                assert all(won), "the same result again is no error"
                assert (expired, result.data["result"]) == (0, "same")
            else:
                assert not any(won)
                assert expired <= 1
                assert result.data["result"] == "Tool execution timed out"
    assert ends <= {"completed", "expired"}
