"""How a run ends: an output of its type, a limit, a model that fails."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import pydantic
import pytest

from perdure import Agent, Context, PerdureError, Refused, Runtime, tool
from perdure.testing import ScriptedModel

MakeRuntime = Callable[..., Runtime]


def agent(*turns: dict[str, Any], tools: Sequence[Any] = (), **options: Any) -> Agent[Any]:
    return Agent("helper", model=ScriptedModel(turns), tools=tools, **options)


def calls(*names: str, **args: Any) -> dict[str, Any]:
    return {"text": "Go.", "calls": [{"tool": name, "args": args} for name in names]}


def model_of(one: Agent[Any]) -> ScriptedModel:
    assert isinstance(one.model, ScriptedModel)
    return one.model


# --- models -----------------------------------------------------------------------------------


@pytest.mark.parametrize("said", ["half \ud800", "ü\x00"])
async def test_what_a_model_says_can_always_be_kept(runtime: MakeRuntime, said: str) -> None:
    one = agent({"text": said, "thinking": said, "calls": [{"tool": said, "id": said}]})
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        assert (result.state, result.output) == ("completed", "done")


async def test_a_model_error_fails_the_run_and_the_next_goes_on_from_there(
    runtime: MakeRuntime,
) -> None:
    ran: list[str] = []

    @tool
    def act() -> str:
        ran.append("act")
        return "acted"

    one = agent(calls("act"), {"error": "overloaded \ud800"}, tools=[act])
    async with runtime(one) as rt:
        failed = await rt.session("s", agent=one).run("Go")
        assert failed.state == "failed"
        assert failed.error is not None
        assert failed.error.code == "MODEL_ERROR"
        with pytest.raises(PerdureError, match="overloaded"):
            failed.unwrap()
    model_of(one).turns[1] = {"text": "Done."}
    async with runtime(one) as rt:
        again = await rt.session("s", agent=one).run()
        assert (again.state, again.output, again.error) == ("completed", "Done.", None)
        assert again.task_id != failed.task_id
        assert again.to_json()["usage"]["requests"] == 2
    assert ran == ["act"]
    assert [r.turn for r in model_of(one).requests] == [1, 2, 2]


async def test_of_many_who_try_again_one_run_comes(in_memory: MakeRuntime) -> None:
    one = agent({"error": "overloaded"})
    async with in_memory(one) as rt:
        await rt.session("s", agent=one).run("Go")
        model_of(one).turns[0] = {"text": "Done."}
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(rt.session("s", agent=one).run)
        types = [event.type for event in await rt.session("s").events()]
        assert types.count("assistant") == types.count("agent_complete") == 1


async def test_instructions_that_cannot_be_made_fail_the_run(in_memory: MakeRuntime) -> None:
    def instructions(ctx: Context) -> str:
        return f"You serve {ctx.metadata['who']}."

    one = agent({"text": "Hi."}, instructions=instructions)
    async with in_memory(one) as rt:
        failed = await rt.session("s", agent=one).run("Go")
        assert failed.state == "failed"
        await rt.session("s").set_metadata({"who": "Ana"})
        assert (await rt.session("s", agent=one).run()).output == "Hi."
    assert model_of(one).requests[0].instructions == "You serve Ana."


# --- limits -----------------------------------------------------------------------------------


async def test_a_run_ends_after_its_turns_and_can_be_resumed(runtime: MakeRuntime) -> None:
    @tool
    def act() -> str:
        return "acted"

    turns = [calls("act")] * 5 + [{"text": "Done."}]
    one = agent(*turns, tools=[act], max_turns=3)
    async with runtime(one) as rt:
        failed = await rt.session("s", agent=one).run("Go")
        assert failed.state == "failed"
        assert failed.error is not None
        assert (failed.error.code, failed.error.hint is not None) == ("SAFETY_LIMIT", True)
        assert len(model_of(one).requests) == 3
        (limit,) = [e.data for e in await rt.session("s").events() if e.type == "safety_limit"]
        assert (limit["limit"], limit["value"]) == ("max_turns", 3)
        assert (await rt.session("s", agent=one).run()).output == "Done."


def test_a_run_has_a_hundred_turns_unless_said() -> None:
    assert agent().max_turns == 100


# --- outputs ----------------------------------------------------------------------------------


class Order(pydantic.BaseModel):
    number: int


@dataclass
class Bill:
    cents: int


@pytest.mark.parametrize(
    "kind, turn, expected",
    [
        (Order, {"output": {"number": 7}}, Order(number=7)),
        (Order, {"text": '{"number": 7}'}, Order(number=7)),
        (Bill, {"output": {"cents": 5}}, Bill(5)),
        (list[int], {"output": [1, 2]}, [1, 2]),
        (int, {"text": "7"}, 7),
    ],
)
async def test_an_output_is_of_its_type_also_when_read_later(
    runtime: MakeRuntime, kind: Any, turn: dict[str, Any], expected: Any
) -> None:
    one = agent(turn, output_type=kind)
    async with runtime(one) as rt:
        assert (await rt.session("s", agent=one).run("Go")).unwrap() == expected
    async with runtime(one) as rt:
        found = await rt.session("s").get()
        assert found.output == expected
        assert type(found.output) is type(expected)
    async with runtime() as rt:  # without the agent: the JSON
        plain = (await rt.session("s").get()).to_json()["output"]
        assert plain == pydantic.TypeAdapter(Any).dump_python(expected)
    assert model_of(one).requests[0].output_schema is not None


async def test_an_output_that_does_not_fit_is_told_to_the_model(in_memory: MakeRuntime) -> None:
    wrong = {"output": {"number": "many"}}
    one = agent(wrong, {"text": "no JSON"}, {"output": {"number": 7}}, output_type=Order)
    async with in_memory(one) as rt:
        assert (await rt.session("s", agent=one).run("Go")).output == Order(number=7)
    told = [str(getattr(r.messages[-1], "content", "")) for r in model_of(one).requests]
    assert "number" in told[1]
    assert "JSON" in told[2]


async def test_an_output_that_never_fits_fails_the_run(in_memory: MakeRuntime) -> None:
    wrong = {"output": {"number": "many"}}
    one = agent(wrong, wrong, wrong, {"output": {"number": 7}}, output_type=Order)
    async with in_memory(one) as rt:
        failed = await rt.session("s", agent=one).run("Go")
        assert failed.state == "failed"
        assert failed.error is not None
        assert failed.error.code == "OUTPUT_INVALID"
        assert len(model_of(one).requests) == 3
        assert (await rt.session("s", agent=one).run()).output == Order(number=7)


async def test_only_a_completed_session_has_an_output_to_unwrap(in_memory: MakeRuntime) -> None:
    one = agent(calls("ask_user", question="Who?"), tools=["ask_user"])
    async with in_memory(one) as rt:
        waiting = await rt.session("s", agent=one).run("Go")
        with pytest.raises(Refused) as refused:
            waiting.unwrap()
        assert refused.value.code == "NOT_FINISHED"


async def test_what_cannot_be_an_output_type_fails_the_run(in_memory: MakeRuntime) -> None:
    one = agent({"text": "x"}, output_type=threading.Thread)
    async with in_memory(one) as rt:
        failed = await rt.session("s", agent=one).run("Go")
        assert failed.error is not None
        assert failed.error.code == "AGENT_INVALID"
        assert "cannot be an output type" in failed.error.message
    assert model_of(one).requests == []
