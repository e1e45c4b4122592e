"""What the next process finds after a real SIGKILL, and what it makes of it."""

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from tests.crash.agents import Place
from tests.crash.harness import (
    KILLED,
    Forker,
    MakePlace,
    StartChild,
    StartForker,
    ended,
    of,
    successor,
)
from tests.crash.program import answer
from tests.support.findings import code_of, problem_of

from perdure import Conflict
from perdure.testing import ManualClock

LATER = timedelta(hours=2)


async def test_the_record_of_a_call_is_there_before_anything_begins_outside(
    place: Place, forker: Forker
) -> None:
    """S0.15: killed on the first line of the tool, before it told anybody of its call."""
    forker.kill(place.folder, "begin", "deploy", at="tool:deploy:call_1_1:before")
    async with successor(place, "deploy") as (rt, session):
        (found,) = [call async for call in rt.pending()]
        assert (found.tool, found.kind, found.status) == ("deploy", "tool", "waiting")
        (call,) = (await session.run()).pending
        assert call.id == found.id
        assert code_of(call) == "START_INTERRUPTED"
        await rt.submit_result(call.id, "it came all the same")
        assert (await session.run()).output == "all done"
    assert (place.effects(), place.asked()) == ([], [0, 1])


async def test_a_process_that_waits_may_die(place: Place, forker: Forker) -> None:
    """S0.28: nothing is held in memory only."""
    forker.kill(place.folder, "begin", "look refund+deploy", at="idle")
    async with successor(place, "look refund+deploy") as (rt, session):
        events = [{"type": e.type, **e.data} for e in await session.events()]
        assert events == ended(place.folder)["events"]
        result = await session.get()
        assert (result.state, [c.tool for c in result.pending]) == ("waiting", ["refund", "deploy"])
        assert result.pending[1].external_ref == "deploy was done"
        for call in result.pending:
            await answer(rt, call)
        assert (await session.run()).output == "all done"
    assert [line["tool"] for line in place.effects()] == ["look", "deploy", "refund"]


@pytest.mark.parametrize("point, written", [("commit:1", False), ("write:1", True)])
async def test_a_submitter_killed_at_its_commit_has_changed_all_or_nothing(
    place: Place, forker: Forker, point: str, written: bool
) -> None:
    """S0.34: record, result and wake-up are one transaction."""
    assert forker.run(place.folder, "begin", "deploy look") == 0
    forker.kill(place.folder, "settle", "", at=point)
    async with successor(place, "deploy look") as (rt, session):
        assert await settled_whole(place) is written
        async for call in rt.pending():
            await rt.submit_result(call.id, "deploy is ready")
        assert (await session.run()).output == "all done"
    assert [line["tool"] for line in place.effects()] == ["deploy", "look"]


async def settled_whole(place: Place) -> bool:
    """Whether the call is settled; fails if its entry, its result and the wake-up differ."""
    async with successor(place, "deploy look") as (rt, session):
        calls = [call async for call in rt.pending(status="all")]
        (settled,) = [call.status == "completed" for call in calls]
        results = [e for e in await session.events() if e.type == "tool_result"]
        result = await session.get()
        is_due = code_of(result) == "NO_WORKER"
        assert (len(results), is_due) == (int(settled), settled)
        return settled


async def test_a_submitter_killed_at_any_instant_has_changed_all_or_nothing(
    places: MakePlace, forker: Forker
) -> None:
    """S0.34: the kill comes from outside the program's order, perhaps inside the transaction."""
    seen = []
    for after_ms in [0, *(n / 2 for n in range(1, 15)), None]:
        place = places(f"{after_ms}")
        assert forker.run(place.folder, "begin", "deploy look") == 0
        die_after_s = None if after_ms is None else after_ms / 1000
        status = forker.run(place.folder, "settle", "", die_after_s=die_after_s)
        assert status in (0, KILLED)
        seen.append(await settled_whole(place))
        async with successor(place, "deploy look") as (rt, session):
            async for call in rt.pending():
                await rt.submit_result(call.id, "deploy is ready")
            assert (await session.run()).output == "all done"
        assert [line["tool"] for line in place.effects()] == ["deploy", "look"]
    assert seen[-1], "nobody killed the last one"


async def test_a_submitter_killed_at_each_call_of_the_system_has_changed_all_or_nothing(
    tmp_path: Path, forker: Forker
) -> None:
    """S0.34, S0.76, S2.9: in the files store, whose files follow, also halfway through a line."""
    seen = []
    status, number = KILLED, 0
    while status == KILLED:
        number += 1
        place = Place(tmp_path / f"{number}", store="files")
        assert forker.run(place.folder, "begin", "deploy look", store="files") == 0
        job = {"store": "files", "die_at_call": number}
        status = forker.run(place.folder, "settle", "", **job)
        seen.append(await settled_whole(place))
        async with successor(place, "deploy look") as (rt, session):
            async for call in rt.pending():
                await rt.submit_result(call.id, "deploy is ready")
            assert (await session.run()).output == "all done"
        assert [line["tool"] for line in place.effects()] == ["deploy", "look"]
    assert status == 0
    assert seen == sorted(seen), "what was written once is there ever after"
    assert (seen[-1], len(seen) > 4) == (True, True)


async def test_at_the_start_the_overdue_are_expired_and_the_others_wait(
    place: Place, forker: Forker
) -> None:
    """S0.65, S0.70: and once more changes nothing."""
    forker.kill(place.folder, "begin", "deploy+quick", at="idle")
    before = {e["tool"]: e for e in of(ended(place.folder), "pending")}
    clock = ManualClock(datetime.now(UTC) + LATER)
    async with successor(place, "deploy+quick", clock) as (rt, session):
        report = await rt.recover()
        assert [one.tool for one in report.expired] == ["quick"]
        assert [one.tool for one in report.waiting] == ["deploy"]
        again = await rt.recover()
        assert (again.expired, again.waiting) == ((), report.waiting)
        result = await session.run()
        (call,) = result.pending
        assert (result.state, call.id) == ("waiting", before["deploy"]["pendingID"])
        assert call.expires_at is not None
        assert round(call.expires_at.timestamp() * 1000) == before["deploy"]["expiresAt"]


async def test_a_call_that_was_processing_in_a_dead_process_waits_again(
    place: Place, forker: Forker
) -> None:
    """S0.66: nobody knows whether its start went through, and everybody is told."""
    forker.kill(place.folder, "begin", "build", at="tool:build:call_1_1:before")
    async with successor(place, "build") as (rt, session):
        assert [call.status async for call in rt.pending()] == ["processing"]
        (call,) = (await session.run()).pending
        assert (call.status, code_of(call)) == ("waiting", "START_INTERRUPTED")


async def test_a_call_that_is_processing_in_a_living_process_is_left_alone(
    place: Place, start: StartChild
) -> None:
    """S0.66: a lease that is kept alive is respected."""
    child = start("drive")
    job = {"turns": "begin_and_hold", "lease": "1s", "blocking": False, "settle_s": 0.0}
    child.tell({"folder": str(place.folder), **job})
    assert "holding" in await to_thread.run_sync(child.says)
    async with successor(place, "begin_and_hold") as (rt, session):
        await rt.work(once=True)
        assert (await session.run(timeout=1.5)).state == "running"
        assert [call.status async for call in rt.pending()] == ["processing"]
        child.tell({})
        assert (await to_thread.run_sync(child.says))["state"] == "waiting"
        (call,) = (await session.run()).pending
        assert (call.external_ref, problem_of(call)) == ("begin_and_hold was done", None)
    assert len(place.effects()) == 1


async def test_a_settled_call_is_resumed_by_whoever_comes_next(
    place: Place, forker: Forker, forkers: StartForker
) -> None:
    """S0.69, S0.70: also by two workers at once, with the effect of one."""
    turns = "deploy look"
    forker.kill(place.folder, "begin", turns, at="idle")
    forker.kill(place.folder, "settle", turns, at="write:1")
    async with anyio.create_task_group() as group:
        for one in (forker, forkers()):
            work = partial(one.run, place.folder, "work", turns)
            group.start_soon(to_thread.run_sync, work)
    async with successor(place, turns) as (_, session):
        assert (await session.get()).output == "all done"
    assert [line["tool"] for line in place.effects()] == ["deploy", "look"]
    assert place.asked() == [0, 1, 2]


async def test_a_deadline_that_passed_while_nobody_was_there_has_passed(
    place: Place, forker: Forker
) -> None:
    """S0.73: the result that finds its call overdue expires it instead."""
    forker.kill(place.folder, "begin", "quick", at="idle")
    async with successor(place, "quick", ManualClock(datetime.now(UTC) + LATER)) as (rt, session):
        (call,) = [call async for call in rt.pending()]
        with pytest.raises(Conflict) as refused:
            await rt.submit_result(call.id, "too late")
        assert refused.value.details["status"] == "expired"
        assert (await session.run()).output == "all done"
        (told,) = [e for e in await session.events() if e.type == "tool_result"]
        assert told.data["result"] == "Tool execution timed out"


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_deferred_call_cut_off_is_begun_again_where_that_is_allowed(
    place: Place, forker: Forker, when: str
) -> None:
    """S0.81 retry: with the same ids."""
    forker.kill(place.folder, "begin", "deploy_retry", at=f"tool:deploy_retry:call_1_1:{when}")
    async with successor(place, "deploy_retry") as (rt, session):
        before = [call async for call in rt.pending()]
        result = await session.run()
        assert ([c.id for c in result.pending], problem_of(result)) == (
            [c.id for c in before],
            None,
        )
        assert [line["attempt"] for line in place.effects()] == [1, 2][when == "before" :]
        assert {line["effect"] for line in place.effects()} == {before[0].effect_id}


async def test_a_deferred_call_cut_off_is_put_to_a_person_where_that_is_said(
    place: Place, forker: Forker
) -> None:
    """S0.81 ask: approving runs it again with the same effect id."""
    forker.kill(place.folder, "begin", "deploy_ask", at="tool:deploy_ask:call_1_1:after")
    async with successor(place, "deploy_ask") as (rt, session):
        asked = (await session.run()).pending
        (question,) = [call for call in asked if call.kind == "approval"]
        assert len(place.effects()) == 1
        await rt.approve(question.id, by="ana")
        (call,) = (await session.run()).pending
        assert (call.kind, call.effect_id) == ("tool", question.effect_id)
        assert {line["effect"] for line in place.effects()} == {call.effect_id}
        assert [line["attempt"] for line in place.effects()] == [1, 2]
        await rt.submit_result(call.id, "ready")
        assert (await session.run()).output == "all done"


async def test_a_deferred_call_cut_off_is_never_silently_waiting(
    place: Place, forker: Forker
) -> None:
    """S0.81 tell: kept open, and marked in every list."""
    forker.kill(place.folder, "begin", "deploy", at="tool:deploy:call_1_1:after")
    async with successor(place, "deploy") as (rt, session):
        result = await session.run()
        problems = [code_of(result), code_of(result.pending[0])]
        problems += [code_of(one) async for one in rt.sessions()]
        problems += [code_of(one) async for one in rt.pending()]
        assert problems == ["START_INTERRUPTED"] * 4
        assert any("START_INTERRUPTED" in line for line in (await rt.recover()).lines())
        assert (result.state, len(place.effects())) == ("waiting", 1)


async def test_an_external_call_is_never_interrupted(places: MakePlace, forker: Forker) -> None:
    """S0.81: killed before and after each write, it is pending or not there, and has no problem."""
    dry = places("dry")
    assert forker.run(dry.folder, "begin", "look+upload") == 0
    writes = [p for p in forker.points(dry.folder) if p.startswith(("write:", "commit:"))]
    assert len(writes) >= 6
    seen = set()
    for point in [*writes, "idle"]:
        place = places(point.partition(" ")[0].replace(":", "-"))
        forker.kill(place.folder, "begin", "look+upload", at=point.partition(" ")[0])
        async with successor(place, "look+upload") as (rt, session):
            before = [call.id async for call in rt.pending()]
            seen.add(len(before))
            (call,) = (await session.run("Refund order 1", key="start")).pending
            assert (call.tool, problem_of(call), before) == (
                "upload",
                None,
                [call.id][: len(before)],
            )
            await rt.submit_result(call.id, "here")
            assert (await session.run()).output == "all done"
            assert "progress" not in [event.type for event in await session.events()]
        assert len(place.effects()) <= 1
    assert seen == {0, 1}


async def test_an_unanswered_call_is_interrupted_and_an_open_wait_goes_on_waiting(
    place: Place, forker: Forker
) -> None:
    """S2.43: both in one turn."""
    forker.kill(place.folder, "begin", "look+deploy", at="tool:look:call_1_1:after")
    async with successor(place, "look+deploy") as (rt, session):
        result = await session.run()
        assert (result.state, [c.tool for c in result.pending]) == ("waiting", ["deploy"])
        (told,) = [e for e in await session.events() if e.type == "tool_result"]
        assert (told.data["toolCallId"], told.data["interrupted"]) == ("call_1_1", True)
        await rt.submit_result(result.pending[0].id, "ready")
        assert (await session.run()).output == "all done"
    assert [line["tool"] for line in place.effects()].count("look") == 1


async def test_after_a_kill_a_task_either_works_or_waits_with_all_its_state(
    places: MakePlace, forker: Forker
) -> None:
    """S4.3: at each write up to the question; there is no third state."""
    dry = places("dry")
    assert forker.run(dry.folder, "begin", "look refund") == 0
    writes = [p for p in forker.points(dry.folder) if p.startswith(("write:", "commit:"))]
    states = []
    for point in writes:
        place = places(point.partition(" ")[0].replace(":", "-"))
        forker.kill(place.folder, "begin", "look refund", at=point.partition(" ")[0])
        async with successor(place, "look refund") as (rt, session):
            if not [one async for one in rt.sessions()]:
                continue  # killed before its first commit
            result = await session.get()
            entries = [c async for c in rt.pending()]
            assert [call.id for call in result.pending] == [call.id for call in entries]
            assert len(entries) == (result.state == "waiting")
            for call in entries:
                assert (call.tool, call.kind, call.status) == ("refund", "approval", "waiting")
                assert call.prompt
            states.append(result.state)
    assert {"pending", "running", "waiting"} >= set(states)
    assert states == sorted(states, key=["pending", "running", "waiting"].index)
    assert states[-1] == "waiting"


async def test_an_answer_survives_the_death_of_who_gave_it(place: Place, forker: Forker) -> None:
    """S4.27: the tool runs once after the restart, and nobody is asked again."""
    forker.kill(place.folder, "begin", "refund", at="idle")
    forker.kill(place.folder, "settle", "refund", at="write:1")
    assert place.effects() == []
    async with successor(place, "refund") as (rt, session):
        assert (await session.run()).output == "all done"
        assert [call.status async for call in rt.pending(status="all")] == ["completed"]
        asked = [e for e in await session.events() if e.type == "pending"]
        assert (len(asked), len(place.effects())) == (1, 1)


@pytest.mark.parametrize("point", ["commit:1", "write:1", "write:3"])
async def test_a_script_started_again_has_sent_its_message_once(
    place: Place, forker: Forker, point: str
) -> None:
    """G1 and the rule of keys: what was sent under a key is sent."""
    forker.kill(place.folder, "story", "look", at=point)
    assert forker.run(place.folder, "story", "look") == 0
    assert forker.run(place.folder, "story", "look") == 0
    end = ended(place.folder)
    assert [e["content"] for e in of(end, "user")] == ["Refund order 1"]
    assert (end["output"], len(place.effects()), place.asked()) == ("all done", 1, [0, 1])
