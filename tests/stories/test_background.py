"""Background agents: launched, read, resumed and cancelled; each outcome is delivered once."""

import json
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from tests.support.child_tasks import child_task
from tests.support.runtimes import MakeRuntime

from perdure import Agent, Conflict, NotFound, Refused, Runtime, tool
from perdure.background import BackgroundManager
from perdure.core.session.children import BACKGROUND_AUTHOR
from perdure.errors import ConfigError
from perdure.testing import ManualClock, ScriptedModel

RESUMED = "Task is currently being resumed. Wait for completion before sending another message."
EXPIRED = "Session expired or was deleted. Start a new background_task to continue."


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"tool": name, "args": args}


def launch(*prompts: str, agent: str = "researcher") -> dict[str, Any]:
    return {"calls": [call("background_task", agent=agent, prompt=prompt) for prompt in prompts]}


def researcher(*turns: dict[str, Any], **options: Any) -> Agent[str]:
    script = turns or ({"text": "First."}, {"text": "Second."}, {"text": "Third."})
    return Agent("researcher", model=ScriptedModel(script), description="Finds things.", **options)


def lead(*turns: dict[str, Any], child: Agent[Any] | None = None, **options: Any) -> Agent[str]:
    model = ScriptedModel(turns)
    return Agent("lead", model=model, sub_agents=[child or researcher()], **options)


def requests(agent: Agent[Any]) -> Sequence[Any]:
    assert isinstance(agent.model, ScriptedModel)
    return agent.model.requests


async def events(rt: Runtime, session: str, kind: str) -> list[dict[str, Any]]:
    return [dict(e.data) for e in await rt.session(session).events() if e.type == kind]


async def results(rt: Runtime, session: str = "s") -> list[Any]:
    found = await events(rt, session, "tool_result")
    return [json.loads(item["result"]) for item in found]


async def notifications(rt: Runtime, session: str = "s") -> list[dict[str, Any]]:
    return [e for e in await events(rt, session, "user") if e.get("by") == BACKGROUND_AUTHOR]


async def only_task(rt: Runtime) -> Any:
    (task,) = [task async for task in rt.background_tasks()]
    return task


@tool(deferred=True)
def look() -> str:
    """Look."""
    return "ref"


async def test_a_launch_returns_at_once_and_its_outcome_is_delivered(runtime: MakeRuntime) -> None:
    """S1.1, S1.4, S1.21, S1.23"""
    one = lead(launch("Tides?"), {"text": "Asked."}, {"text": "Read."})
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        assert (result.state, result.output) == ("completed", "Read.")
        (answer,) = await results(rt)
        task = await only_task(rt)
        assert answer == {
            "task_id": task.id,
            "status": "running",
            "resumeCount": 0,
            "agent": "researcher",
            "message": answer["message"],
        }
        (notification,) = await notifications(rt)
        assert "First." in notification["content"]
        assert task.id in notification["content"]
        assert (await child_task(rt, task)).status == "completed"
        assert (await task.get()).output_json == "First."


async def test_three_children_are_all_read_by_a_program_without_a_worker(
    runtime: MakeRuntime,
) -> None:
    """S1.23, S1.43"""
    one = lead(launch("A", "B", "C"), {"text": "Asked."})
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        assert result.state == "completed"
        delivered = [mail for item in await notifications(rt) for mail in item["mail"]]
        ids = [task.id async for task in rt.background_tasks(parent="s")]
        assert sorted(delivered) == sorted(f"{task}.1" for task in ids)


async def test_a_blocking_output_parks_the_parent_and_takes_the_outcome(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S1.22"""
    one = lead({"text": "placeholder"})
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?", parent=await begun(rt, one))
        turns: list[dict[str, Any]] = [
            {"text": "Started."},
            {"calls": [call("background_output", task_id=task.id, block=True)]},
            {"text": "Got it."},
        ]
        set_turns(one, turns)
        result = await rt.session("s").run("Read it")
        assert result.output == "Got it."
        (answer,) = await results(rt)
        assert answer == {
            "task_id": task.id,
            "status": "completed",
            "resumeCount": 0,
            "output": "First.",
        }
        assert await notifications(rt) == []


async def test_a_blocking_output_of_a_manager_takes_the_outcome(runtime: MakeRuntime) -> None:
    """S1.22: before its end, and after it."""
    one = lead({"text": "Started."})
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Start")
        manager = BackgroundManager(rt, session="s")
        launched = await manager.background_task("researcher", "Tides?")
        answer = await manager.background_output(launched["task_id"], block=True)
        assert (answer["status"], answer["output"]) == ("completed", "First.")
        again = await manager.background_output(launched["task_id"])
        assert again["output"] == "First."
        ended = await manager.background_task("researcher", "Moons?")
        await rt.session((await rt.background_task(ended["task_id"])).session_id).run()
        assert (await manager.background_output(ended["task_id"], block=True))["output"] == "First."
        await rt.session("s").run()
        assert await notifications(rt) == []
        taken = [mail for event in await events(rt, "s", "mail_taken") for mail in event["mail"]]
        assert taken == [f"{launched['task_id']}.1", f"{ended['task_id']}.1"]


async def test_a_blocking_output_of_a_manager_leaves_what_comes_too_late_to_the_parent(
    runtime: MakeRuntime,
) -> None:
    """S1.22, S1.19"""
    child = researcher({"calls": [call("look")]}, {"text": "At last."}, tools=[look])
    one = lead({"text": "Started."}, {"text": "Read."}, child=child)
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Start")
        manager = BackgroundManager(rt, session="s")
        launched = await manager.background_task("researcher", "Tides?")
        answer = await manager.background_output(launched["task_id"], block=True, timeout=200)
        assert (answer["status"], "still running" in answer["message"]) == ("running", True)
        (below,) = (await rt.background_task(launched["task_id"])).pending
        await rt.submit_result(below.id, "seen")
        await rt.session("s").run()
        (notification,) = await notifications(rt)
        assert "At last." in notification["content"]


async def test_a_caller_that_is_cancelled_leaves_the_answer_to_the_parent(
    runtime: MakeRuntime,
) -> None:
    """S1.20: the clock stands still."""
    child = researcher(
        {"text": "First."}, {"calls": [call("look")]}, {"text": "Second."}, tools=[look]
    )
    one = lead({"text": "Started."}, {"text": "Read."}, {"text": "Read."}, child=child)
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Start")
        task = await rt.spawn("researcher", "Tides?", parent="s")
        await rt.session("s").run()
        with anyio.move_on_after(0.3) as scope:
            await task.resume("More?", block=True)
        assert scope.cancelled_caught
        (below,) = (await task.get()).pending
        await rt.submit_result(below.id, "seen")
        with anyio.fail_after(20):
            await rt.session("s").run()
        assert "Second." in (await notifications(rt))[-1]["content"]


async def begun(rt: Runtime, one: Agent[Any]) -> str:
    """Return a parent session that has completed a first run."""
    set_turns(one, [{"text": "Started."}])
    await rt.session("s", agent=one).run("Start")
    return "s"


def set_turns(one: Agent[Any], turns: Sequence[dict[str, Any]]) -> None:
    assert isinstance(one.model, ScriptedModel)
    one.model.turns = ScriptedModel(turns).turns


async def test_a_wait_that_takes_too_long_says_still_running_and_notifies_later(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S1.19"""
    child = researcher({"calls": [call("look")]}, {"text": "At last."}, tools=[look])
    one = lead(launch("Tides?"), {"text": "x"}, child=child)
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Go")
        task = await only_task(rt)
        wait = {"calls": [call("background_output", task_id=task.id, block=True, timeout=1000)]}
        set_turns(one, [launch("Tides?"), {"text": "x"}, wait, {"text": "Later."}, {"text": "Ah."}])
        waiting = await rt.session("s").run("Read it")
        assert waiting.state == "waiting"
        kinds = {c.session_id: c.kind for c in waiting.pending}
        assert kinds == {"s": "child", task.session_id: "tool"}
        clock.advance("2s")
        assert (await rt.session("s").run()).output == "Later."
        answer = (await results(rt))[-1]
        assert (answer["status"], answer["task_id"]) == ("running", task.id)
        assert "still running" in answer["message"]
        (below,) = (await rt.session("s").get()).pending
        assert below.ancestry == ("s",)
        await rt.submit_result(below.id, "seen")
        assert (await rt.session("s").run()).output == "Ah."
        (notification,) = await notifications(rt)
        assert "At last." in notification["content"]


async def test_a_follow_up_continues_the_same_conversation_and_is_counted(
    runtime: MakeRuntime,
) -> None:
    """S1.13, S1.15, S1.16, S1.17, S1.41"""
    child = researcher()
    one = lead({"text": "x"}, child=child)
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?")
        assert (await task.output(block=True)).output == "First."
        for count, answer in enumerate(["Second.", "Third."], 1):
            result = await task.resume("More?", block=True)
            assert result.output == answer
            record = await child_task(rt, task)
            assert (record.status, record.resume_count) == ("completed", count)
        said = [type(message).__name__ for message in requests(child)[-1].messages]
        assert len(said) == 5


async def test_a_blocking_follow_up_of_the_model_returns_only_the_new_answer(
    runtime: MakeRuntime,
) -> None:
    """S1.17, S1.18"""
    one = lead({"text": "x"})
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?", parent=await begun(rt, one))
        await task.output(block=True)
        await rt.session("s").run()
        seen = len(await notifications(rt))
        follow_up = call("background_resume", task_id=task.id, message="More?", block=True)
        asked: list[dict[str, Any]] = [{"calls": [follow_up]}, {"text": "Done."}]
        turns = [{"text": "Started."}] * (1 + seen) + asked
        set_turns(one, turns)
        assert (await rt.session("s").run("Ask more")).output == "Done."
        answer = (await results(rt))[-1]
        assert answer == {
            "task_id": task.id,
            "status": "completed",
            "resumeCount": 1,
            "output": "Second.",
        }
        assert len(await notifications(rt)) == seen


async def test_refusals_of_a_follow_up_have_their_texts_in_their_order(
    runtime: MakeRuntime,
) -> None:
    """S1.6, S1.8, S1.9, S1.10, S1.11, S1.12, S1.39"""
    one = lead({"text": "x"})
    async with runtime(one) as rt:
        manager = BackgroundManager(rt)
        with pytest.raises(NotFound) as unknown:
            await manager.background_resume("bg_nothing", "More?")
        assert unknown.value.message == "Task not found: bg_nothing"
        launched = await manager.background_task("researcher", "Tides?")
        task_id = launched["task_id"]
        with pytest.raises(Conflict) as caught:
            await manager.background_resume(task_id, "More?")
        assert caught.value.message == (
            "Cannot resume task: status is 'running'. Only completed tasks can be resumed."
        )
        await manager.background_output(task_id, block=True)
        for message in ("", "  ", [], ["", " "]):
            with pytest.raises(Refused, match="message parameter is required") as refused:
                await manager.background_resume(task_id, message)
            assert refused.value.hint == "message must have text"
        assert (await manager.background_resume(task_id, "More?"))["resumeCount"] == 1
        with pytest.raises(Conflict) as caught:
            await manager.background_resume(task_id, "And more?")
        assert caught.value.message == RESUMED
        await manager.background_output(task_id, block=True)
        await rt.session((await rt.background_task(task_id)).session_id).delete()
        with pytest.raises(NotFound) as gone:
            await manager.background_resume(task_id, "More?")
        assert gone.value.message in (EXPIRED, f"Task not found: {task_id}")


async def test_a_completed_task_whose_session_was_deleted_says_where_its_output_is(
    runtime: MakeRuntime,
) -> None:
    """S1.11: it stays completed, and that is not an error of the task."""
    one = lead(launch("A"), {"text": "Asked."}, {"text": "Read."})
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Go")
        (task,) = [item async for item in rt.background_tasks()]
        await rt.session(task.session_id).delete()
        answer = await BackgroundManager(rt, session="s").background_output(task.id)
        gone = f"Task {task.id} has completed, and its output was deleted with its session."
        assert answer == {
            "task_id": task.id,
            "status": "completed",
            "resumeCount": 0,
            "message": gone,
        }


async def test_of_many_follow_ups_at_once_exactly_one_is_accepted(runtime: MakeRuntime) -> None:
    """S1.14"""
    one = lead({"text": "x"})
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?")
        await task.output(block=True)
        outcomes: list[str] = []

        async def resume() -> None:
            try:
                await task.resume("More?")
                outcomes.append("accepted")
            except Conflict as error:
                outcomes.append(error.message)

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(resume)
        assert outcomes.count("accepted") == 1
        assert set(outcomes) == {"accepted", RESUMED}
        assert (await child_task(rt, task)).resume_count == 1


async def test_a_failed_child_is_an_error_and_its_parent_is_told(runtime: MakeRuntime) -> None:
    """S1.26, S1.27, S1.9"""
    child = researcher({"error": "no key"}, retries=0)
    one = lead(launch("Tides?"), {"text": "Asked."}, {"text": "Sad."}, child=child)
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Go")
        task = await only_task(rt)
        assert (await child_task(rt, task)).status == "error"
        (notification,) = await notifications(rt)
        assert "has failed" in notification["content"]
        assert task.id in notification["content"]
        with pytest.raises(Conflict, match="status is 'error'"):
            await task.resume("More?")


async def test_only_running_tasks_can_be_cancelled(runtime: MakeRuntime) -> None:
    """S1.32"""
    one = lead({"text": "x"})
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?")
        assert (await task.cancel(by="ana")).status == "cancelled"
        with pytest.raises(Conflict) as caught:
            await task.cancel()
        assert caught.value.message == (
            'Cannot cancel task: current status is "cancelled". '
            "Only running tasks can be cancelled."
        )
        with pytest.raises(Conflict, match="status is 'cancelled'"):
            await task.resume("More?")


async def test_cancelling_a_parent_cancels_its_running_children(runtime: MakeRuntime) -> None:
    """S1.30"""
    child = researcher({"calls": [call("look")]}, tools=[look])
    one = lead(launch("A", "B"), {"calls": [call("ask_user", question="?")]}, child=child)
    one = Agent("lead", model=one.model, sub_agents=[child], tools=["ask_user"])
    async with runtime(one) as rt:
        waiting = await rt.session("s", agent=one).run("Go")
        assert waiting.state == "waiting"
        assert len(waiting.pending) == 3
        await rt.session("s").cancel()
        await rt.session("s").run()
        statuses = [task.status async for task in rt.background_tasks()]
        assert statuses == ["cancelled", "cancelled"]
        assert (await rt.session("s").get()).state == "cancelled"
        assert await notifications(rt) == []
        assert [c async for c in rt.pending()] == []


async def test_children_can_be_kept_when_their_parent_is_cancelled(runtime: MakeRuntime) -> None:
    one = lead(
        launch("A"),
        {"calls": [call("background_output", task_id="bg_", block=True)]},
        {"text": "Read."},
    )
    async with runtime(one) as rt:
        session = rt.session("s", agent=one)
        await session.send("Go")
        await rt._service.runs._follow_one(await rt._service.get(session._ref))
        await session.cancel(keep_children=True)
        result = await session.run()
        assert [task.status async for task in rt.background_tasks()] == ["completed"]
        assert result.output == "Read."


async def test_clear_cancels_what_runs_hides_all_and_counts(runtime: MakeRuntime) -> None:
    """S1.29, S1.36"""
    one = lead({"text": "x"})
    async with runtime(one) as rt:
        parent = await begun(rt, one)
        manager = BackgroundManager(rt, session=parent)
        done = (await manager.background_task("researcher", "A"))["task_id"]
        await manager.background_output(done, block=True)
        running = (await manager.background_task("researcher", "B"))["task_id"]
        cleared = await manager.background_clear()
        assert cleared["cleared"] == 2
        assert {task["status"] for task in cleared["tasks"]} == {"completed", "cancelled"}
        assert (await manager.background_list())["count"] == 0
        for task_id in (done, running):
            with pytest.raises(NotFound) as caught:
                await manager.background_output(task_id)
            assert caught.value.details == {"reason": "cleared"}
            assert str(caught.value.hint).startswith("it was cleared; its session is still there")


async def test_a_list_marks_resumed_tasks(runtime: MakeRuntime) -> None:
    """S1.15"""
    one = lead({"text": "x"})
    async with runtime(one) as rt:
        parent = await begun(rt, one)
        task = await rt.spawn("researcher", "Tides?", parent=parent, description="tides")
        await task.output(block=True)
        await task.resume("More?", block=True)
        set_turns(one, [{"text": "Started."}, {"calls": [call("background_list")]}])
        await rt.session("s").run("List")
        (listed,) = (await results(rt))[-1]["tasks"]
        assert listed["description"] == "tides (resumed)"
        assert listed["resumeCount"] == 1
        (listed,) = (await BackgroundManager(rt, session="s").background_list())["tasks"]
        assert (listed["description"], listed["resumeCount"]) == ("tides (resumed)", 1)


async def test_a_child_has_the_background_tools_only_down_to_the_depth_of_the_root(
    runtime: MakeRuntime,
) -> None:
    """S1.2"""
    leaf = Agent("leaf", model=ScriptedModel([{"text": "leaf"}]))
    middle = Agent(
        "middle",
        model=ScriptedModel([launch("x", agent="leaf"), {"text": "middle"}]),
        sub_agents=[leaf],
    )
    one = Agent(
        "lead",
        model=ScriptedModel([launch("x", agent="middle"), {"text": "lead"}]),
        sub_agents=[middle],
        max_depth=1,
    )
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Go")
        task = await only_task(rt)
        (refused,) = await events(rt, task.session_id, "tool_result")
        assert refused["isError"]
        assert "There is no tool 'background_task'" in refused["result"]
        names = [spec.name for spec in requests(middle)[0].tools]
        assert not any(name.startswith("background_") for name in names)


async def test_a_grandchild_notifies_its_own_parent(runtime: MakeRuntime) -> None:
    leaf = Agent("leaf", model=ScriptedModel([{"text": "from the leaf"}]))
    middle = Agent(
        "middle",
        model=ScriptedModel([launch("x", agent="leaf"), {"text": "waiting"}, {"text": "heard"}]),
        sub_agents=[leaf],
    )
    one = Agent(
        "lead",
        model=ScriptedModel([launch("x", agent="middle"), {"text": "asked"}]),
        sub_agents=[middle],
    )
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Go")
        (middle_task,) = [t async for t in rt.background_tasks(parent="s")]
        (heard,) = await notifications(rt, middle_task.session_id)
        assert "from the leaf" in heard["content"]
        texts = " ".join(str(item["content"]) for item in await notifications(rt))
        assert "from the leaf" not in texts
        assert "heard" in texts


async def test_the_tools_of_a_child_are_never_widened(runtime: MakeRuntime) -> None:
    """S1.16"""
    child = researcher()
    one = lead({"text": "x"}, child=child)
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?")
        await task.output(block=True)
        wider = researcher({"text": "First."}, {"text": "Second."}, tools=["todo_write"])
        rt._service.agents.replace(wider)
        await task.resume("More?", block=True)
        assert [spec.name for spec in requests(wider)[-1].tools] == []


async def test_a_task_that_completed_long_ago_can_be_resumed(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S1.28"""
    one = lead({"text": "x"})
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?")
        await task.output(block=True)
    clock.advance("31d")
    async with runtime(one) as rt:
        assert (
            await (await rt.background_task(task.id)).resume("More?", block=True)
        ).output == "Second."


async def test_a_restart_starts_no_completed_task_again(runtime: MakeRuntime) -> None:
    """S1.33, S1.35"""
    child = researcher()
    one = lead({"text": "x"}, child=child)
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?")
        await task.output(block=True)
    before = len(requests(child))
    async with runtime(one) as rt:
        await rt.work(once=True)
        assert len(requests(child)) == before
        assert (await rt.background_task(task.id)).output_json == "First."


async def test_a_child_that_waits_for_a_person_leaves_its_task_running(
    runtime: MakeRuntime,
) -> None:
    """S1.42, S4.36"""
    child = researcher({"calls": [call("ask_user", question="Which?")]}, {"text": "That."})
    child = Agent("researcher", model=child.model, tools=["ask_user"])
    one = lead(launch("Tides?"), {"text": "Asked."}, {"text": "Read."}, child=child)
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        task = await only_task(rt)
        assert (await child_task(rt, task)).status == "running"
        (question,) = result.pending
        assert (question.session_id, question.ancestry) == (task.session_id, ("s",))
        await rt.respond(question.id, "this", by="ana")
        assert (await rt.session("s").run()).output == "Read."
        assert (await child_task(rt, task)).status == "completed"


async def test_an_answer_without_text_is_marked(runtime: MakeRuntime) -> None:
    """S1.25"""
    one = lead(launch("x"), {"text": "Asked."}, {"text": "Hm."}, child=researcher({"text": ""}))
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Go")
        (notification,) = await notifications(rt)
        assert "(no text output)" in notification["content"]


@pytest.mark.parametrize("wait", [0, -1, True, "soon"])
async def test_a_bad_timeout_is_refused_and_changes_nothing(
    runtime: MakeRuntime, wait: Any
) -> None:
    """S1.7"""
    one = lead({"text": "x"})
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?")
        await task.output(block=True)
        manager = BackgroundManager(rt)
        with pytest.raises(Refused, match="timeout"):
            await manager.background_resume(task.id, "More?", block=True, timeout=wait)
        assert (await child_task(rt, task)).resume_count == 0
        # It does not count if the call does not block.
        await manager.background_resume(task.id, "More?", timeout=wait)


async def test_a_launch_under_a_key_is_one_launch(runtime: MakeRuntime) -> None:
    one = lead({"text": "x"})
    async with runtime(one) as rt:
        first = await rt.spawn("researcher", "Tides?", key="k")
        again = await rt.spawn("researcher", "Tides?", key="k")
        assert first.id == again.id
        with pytest.raises(Conflict) as caught:
            await rt.spawn("researcher", "Moons?", key="k")
        assert caught.value.code == "KEY_REUSED"


@pytest.mark.parametrize("has_parent", [True, False])
async def test_the_key_of_a_deleted_task_is_not_used_again(
    runtime: MakeRuntime, has_parent: bool
) -> None:
    """S1.36, S1.39: no other task appears under it, and both errors say what happened."""
    one = lead({"text": "Started."})
    async with runtime(one) as rt:
        parent = (await rt.session("s", agent=one).run("Go")).session_id if has_parent else None
        task = await rt.spawn("researcher", "Tides?", parent=parent, key="tides")
        await task.delete()
        with pytest.raises(NotFound, match=f"^Task not found: {task.id}") as missing:
            await child_task(rt, task)
        assert missing.value.details == {"reason": "deleted"}
        assert missing.value.hint == "it was deleted with its session"
        with pytest.raises(Conflict, match="launched under the key 'tides' was deleted") as refused:
            await rt.spawn("researcher", "Tides?", parent=parent, key="tides")
        assert refused.value.code == "KEY_REUSED"


async def test_deleting_a_parent_erases_its_whole_tree(runtime: MakeRuntime) -> None:
    """S1.29"""
    one = lead(launch("A", "B"), {"text": "Asked."})
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Go")
        ids = [task.session_id async for task in rt.background_tasks()]
        await rt.session("s").delete()
        for session_id in ("s", *ids):
            with pytest.raises(NotFound):
                await rt.session(session_id).get()
        assert [task async for task in rt.background_tasks()] == []


async def test_a_message_sent_to_a_finished_child_is_a_resume_by_its_sender(
    runtime: MakeRuntime,
) -> None:
    one = lead({"text": "x"})
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?", parent=await begun(rt, one))
        await task.output(block=True)
        await rt.session(task.session_id).run("And now?", by="ana")
        record = await child_task(rt, task)
        assert (record.status, record.resume_count) == ("completed", 1)
        resumed = await events(rt, "s", "delegation_resumed")
        (fact,) = resumed
        assert (fact["taskID"], fact["number"], fact["by"]) == (task.id, 2, "ana")


def test_sub_agents_must_be_agents() -> None:
    for wrong in ([3], ["no spaces please!"], [researcher(), "researcher"]):
        with pytest.raises(ConfigError):
            Agent("lead", model="scripted:x.json", sub_agents=wrong)  # type: ignore[arg-type]


async def test_an_agent_that_is_not_listed_cannot_be_launched(runtime: MakeRuntime) -> None:
    one = lead(launch("x", agent="other"), {"text": "Hm."})
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Go")
        (refused,) = await events(rt, "s", "tool_result")
        assert refused["isError"]
        assert [task async for task in rt.background_tasks()] == []


async def test_a_session_lists_its_background_agents(runtime: MakeRuntime) -> None:
    one = lead(launch("A"), {"text": "Asked."})
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        task = await only_task(rt)
        assert result.to_json()["children"] == [
            {
                "taskID": task.id,
                "sessionID": task.session_id,
                "agent": "researcher",
                "description": "A",
                "status": "completed",
                "resumeCount": 0,
            }
        ]


async def test_a_task_may_be_named_by_a_unique_prefix_of_its_id(runtime: MakeRuntime) -> None:
    """S1.37: an ambiguous prefix is reported; the newest task is not chosen instead."""
    read = call("background_output", task_id="bg_")
    one = lead(launch("Tides?"), {"calls": [read]}, launch("Moons?"), {"calls": [read]}, {})
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Go")
        answers = await results(rt)
        ids = {task.id async for task in rt.background_tasks(parent="s")}
        assert answers[1]["task_id"] in ids
        assert answers[3]["error"] == "Task not found: bg_"
        assert answers[3]["reason"] == "ambiguous: " + ", ".join(sorted(ids))


async def test_a_resume_leaves_the_other_tools_as_they_are(runtime: MakeRuntime) -> None:
    """S1.31: launch, read, list, cancel and clear, before and after a resume."""
    one = lead(*[{"text": "Read."}] * 20)
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Start")
        manager = BackgroundManager(rt, session="s")

        async def use_all() -> list[Any]:
            launched = await manager.background_task("researcher", "Tides?")
            task_id = launched["task_id"]
            done = await manager.background_output(task_id, block=True)
            other = (await manager.background_task("researcher", "Moons?"))["task_id"]
            running = await manager.background_list("running")
            cancelled = await manager.background_cancel(other)
            return [
                launched["status"],
                (done["status"], done["output"], done["resumeCount"]),
                [task["id"] for task in running["tasks"]] == [other],
                cancelled["status"],
            ]

        before = await use_all()
        task = (await manager.background_list("completed"))["tasks"][0]["id"]
        answer = await manager.background_resume(task, "More.", block=True)
        assert (answer["output"], answer["resumeCount"]) == ("Second.", 1)
        assert await use_all() == before
        assert before == ["running", ("completed", "First.", 0), True, "cancelled"]
        assert (await manager.background_clear())["cleared"] == 4
        assert (await manager.background_list())["count"] == 0


async def test_follow_ups_are_limited_by_no_quota_and_no_rate(runtime: MakeRuntime) -> None:
    """S1.40, S1.41"""
    child = researcher(*[{"text": str(number)} for number in range(31)])
    async with runtime(child) as rt:
        task = await rt.spawn("researcher", "Tides?")
        await task.output(block=True)
        for number in range(1, 31):
            assert (await task.resume("More.", block=True)).output == str(number)
        assert (await child_task(rt, task)).resume_count == 30


async def test_a_failed_task_continues_if_its_session_gets_a_message(runtime: MakeRuntime) -> None:
    """The tool refuses it; who knows what failed can send a message to the session itself."""
    child = researcher({"error": "overloaded"}, {"text": "Found."}, retries=0)
    one = lead(*[{"text": "Read."}] * 5, child=child)
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Start")
        task = await rt.spawn("researcher", "Tides?", parent="s")
        assert (await task.output(block=True)).task.status == "error"
        with pytest.raises(Conflict, match="Only completed tasks can be resumed"):
            await task.resume("Again.")
        assert isinstance(child.model, ScriptedModel)
        child.model.turns = ScriptedModel([{"text": "Found."}]).turns
        await rt.session(task.session_id, agent=child).run("Try again.")
        record = await child_task(rt, task)
        assert (record.status, record.resume_count) == ("completed", 1)
