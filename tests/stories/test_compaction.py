"""A session that outgrows its model's window goes on from a summary, and loses nothing."""

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, get_args

import pytest
from tests.stories.test_model_retries import time_passes
from tests.support.runtimes import MakeRuntime
from tests.support.window_model import WindowModel, texts

from perdure import Agent, Delta, Result, Runtime, tool
from perdure.core.conversation.messages import (
    Answer,
    AssistantMessage,
    ToolMessage,
    UserMessage,
)
from perdure.core.providers.catalog import Format
from perdure.core.providers.formats import render
from perdure.errors import ModelError, ModelUnavailable
from perdure.options import Compaction
from perdure.runtime.models import Usage
from perdure.runtime.models.base import Request
from perdure.runtime.sessions import runs
from perdure.testing import ManualClock, ScriptedModel, survives
from perdure.testing.provider_rules import check

PAGE = "page " * 200  # 250 tokens
TOOLS = [{"name": "read", "input_schema": {"type": "object"}}]


@tool
def read(page: int) -> str:
    """Read a page."""
    return f"{page}: {PAGE}"


@tool(requires_approval=True)
def burn(page: int) -> str:
    """Burn a page."""
    return f"burnt {page}"


@tool(redact=["pin"])
def unlock(pin: str) -> str:
    """Unlock."""
    return "open"


def reads(*pages: int) -> list[dict[str, Any]]:
    return [{"calls": [{"tool": "read", "args": {"page": page}}]} for page in pages]


BOOK = [*reads(1, 2, 3, 4, 5, 6), {"text": "I have read it."}]
SHORT: Compaction = {"at": 900, "keep": 2}


def reader(
    turns: list[dict[str, Any]] | None = None, window: int = 10**9, **more: Any
) -> Agent[str]:
    model = WindowModel(BOOK if turns is None else turns, window)
    return Agent("reader", model=model, tools=[read, burn, unlock], **more)


def model_of(agent: Agent[Any]) -> WindowModel:
    assert isinstance(agent.model, WindowModel)
    return agent.model


async def facts(rt: Runtime, kind: str, session: str = "s") -> list[dict[str, Any]]:
    return [dict(e.data) for e in await rt.session(session).events() if e.type == kind]


async def test_nothing_happens_below_the_threshold(runtime: MakeRuntime) -> None:
    one = reader(compaction={"at": 100_000})
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Read the book.")
        assert await facts(rt, "compacted") == []
    assert result.output == "I have read it."
    assert len(model_of(one).requests) == 7


async def test_a_long_session_goes_on_from_a_summary(runtime: MakeRuntime) -> None:
    one = reader(compaction=SHORT)
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Read the book.")
        cuts = await facts(rt, "compacted")
        events = await rt.session("s").events()
    model = model_of(one)
    assert result.output == "I have read it."
    assert model.turns_asked == [1, 2, 3, 4, 5, 6, 7]
    assert len(cuts) == len(model.summaries) > 0
    assert all(cut["tokens"] >= 900 and cut["model"] == "acme:large" for cut in cuts)
    last = model.requests[-1].messages
    assert isinstance(last[0], UserMessage)
    assert last[0].content == "Read the book."
    assert "<summary>" in texts(last)[1]
    assert sum(isinstance(message, AssistantMessage) for message in last) < 6
    results = [e for e in events if e.type == "tool_result"]
    assert len(results) == 6
    assert result.usage.requests == 7 + len(cuts)


async def test_every_request_is_one_that_providers_take(runtime: MakeRuntime) -> None:
    """G6"""
    turns = [*reads(1, 2), {"calls": [*reads(3)[0]["calls"], *reads(4)[0]["calls"]]}, *reads(5, 6)]
    one = reader([*turns, {"text": "Done."}], compaction={"at": 700, "keep": 1})
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Read the book.")
        await rt.session("s", agent=one).run("And again.")
    assert model_of(one).summaries
    for request in model_of(one).requests:
        asked = {
            call.id for m in request.messages if isinstance(m, AssistantMessage) for call in m.calls
        }
        told = [m.call_id for m in request.messages if isinstance(m, ToolMessage)]
        assert sorted(asked) == sorted(told)
        for wanted in get_args(Format):
            body = {"max_tokens": 1, "tools": TOOLS, **render(request.messages, wanted)}
            assert check(body, wanted) == []


async def test_a_summary_is_asked_for_with_what_it_stands_for(runtime: MakeRuntime) -> None:
    one = reader(compaction={**SHORT, "instructions": "Note what counts."}, output_type=str)
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Read the book.")
    asked = model_of(one).summaries[0]
    *covered, last = asked.messages
    assert last == UserMessage("Note what counts.")
    assert covered[0] == UserMessage("Read the book.")
    assert asked.tools
    assert asked.output_schema is None
    kept = model_of(one).requests[model_of(one).requests.index(asked) + 1].messages
    assert not set(map(repr, covered[1:])) & set(map(repr, kept))


async def test_summaries_are_summarised_in_turn(runtime: MakeRuntime) -> None:
    turns = [*reads(*range(1, 15)), {"text": "Done."}]
    one = reader(turns, compaction={"at": 700, "keep": 1, "first": False})
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Read the book.")
        cuts = await facts(rt, "compacted")
    model = model_of(one)
    assert len(cuts) > 2
    assert [cut["upTo"] for cut in cuts] == sorted({cut["upTo"] for cut in cuts})
    assert cuts[0]["summary"] in texts(model.summaries[1].messages)[0]
    final = texts(model.requests[-1].messages)
    assert final == [final[0]]
    assert cuts[-1]["summary"] in final[0]


async def test_what_is_open_is_never_cut(runtime: MakeRuntime) -> None:
    burns = {"calls": [{"tool": "burn", "args": {"page": 9}}]}
    one = reader([*reads(1, 2, 3, 4), burns, {"text": "Done."}], compaction=SHORT)
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Read the book.")
        assert result.state == "waiting"
        before = len(model_of(one).requests)
        await rt.approve(result.pending[0].id, by="ana")
        assert len(model_of(one).requests) == before
        result = await rt.session("s", agent=one).run()
    assert result.output == "Done."
    last = model_of(one).requests[-1].messages
    assert [m.content for m in last if isinstance(m, ToolMessage)][-1] == "burnt 9"


async def test_the_log_keeps_all_and_a_fork_before_it_has_the_original(
    runtime: MakeRuntime,
) -> None:
    one = reader(compaction=SHORT)
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Read the book.")
        first = next(e for e in await rt.session("s").events() if e.type == "compacted")
        await rt.session("s").fork(at=first.seq - 1, id="before")
        await rt.session("s").fork(id="after")
        assert await facts(rt, "compacted", "before") == []
        model_of(one).requests.clear()
        await rt.session("before", agent=one).run("Go on.")
        before = model_of(one).requests[0]
        model_of(one).requests.clear()
        await rt.session("after", agent=one).run("Go on.")
        after = model_of(one).requests[-1]
    assert before.purpose == "summary"  # it has outgrown the window itself, from its original
    assert texts(before.messages)[0] == "Read the book."
    assert "<summary>" not in " ".join(texts(before.messages))
    assert "<summary>" in texts(after.messages)[1]


async def test_another_process_goes_on_from_the_same_summary(runtime: MakeRuntime) -> None:
    one = reader(compaction=SHORT)
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Read the book.")
    again = reader(compaction=SHORT)
    async with runtime(again) as rt:
        await rt.session("s", agent=again).run("Thanks.")
    told = model_of(again).requests[-1].messages
    assert model_of(one).requests[-1].messages == told[: len(model_of(one).requests[-1].messages)]


# --- when the provider says that it is too long -------------------------------------------------


async def test_a_request_that_is_too_long_is_sent_again_with_a_summary(
    runtime: MakeRuntime,
) -> None:
    one = reader(window=1_200, compaction={"keep": 2})
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Read the book.")
        cuts = await facts(rt, "compacted")
    assert result.output == "I have read it."
    assert len(cuts) == len(model_of(one).summaries) > 0
    assert model_of(one).turns_asked == [1, 2, 3, 4, 5, 6, 7]
    assert model_of(one).refused


async def test_a_summary_that_is_too_long_itself_is_made_of_less(runtime: MakeRuntime) -> None:
    small = [{"text": "Good."}]
    one = reader([*reads(1, 2, 3, 4, 5, 6)], compaction=False)
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Read the book.")
    model = WindowModel([*BOOK, *small], 800)
    again = Agent("reader", model=model, tools=[read], compaction={"keep": 1})
    async with runtime(again) as rt:
        result = await rt.session("s", agent=again).run("Well?")
        cuts = await facts(rt, "compacted")
    assert result.output == "Good."
    assert len(cuts) > 1
    assert any(one.purpose == "summary" for one in model_of(again).refused)


class Brief(WindowModel):
    """Its summaries are cut off where they would have to tell of more than a few messages."""

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        async for piece in super().answer(request):
            is_long = request.purpose == "summary" and len(request.messages) > 5
            if isinstance(piece, Answer) and is_long:
                yield replace(piece, stop_reason="max_tokens")
            else:
                yield piece


async def test_a_summary_that_was_cut_off_is_none_and_is_made_of_less(
    runtime: MakeRuntime,
) -> None:
    model = Brief(BOOK)
    one = Agent("reader", model=model, tools=[read], compaction=SHORT)
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Read the book.")
        cuts = await facts(rt, "compacted")
    assert result.output == "I have read it."
    assert any(len(request.messages) > 5 for request in model.summaries)
    whole = [request for request in model.summaries if len(request.messages) <= 5]
    assert len(cuts) == len(whole) > 0


async def test_what_no_summary_makes_short_enough_fails_with_what_to_do(
    runtime: MakeRuntime,
) -> None:
    one = reader(window=200)
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Read the book.")
        assert await facts(rt, "compacted") == []
    assert result.state == "failed"
    assert result.error is not None
    assert (result.error.code, result.error.hint) == ("MODEL_CONTEXT", "shorten it")


async def test_it_can_be_off(runtime: MakeRuntime) -> None:
    one = reader(window=1_200, compaction=False)
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Read the book.")
        assert await facts(rt, "compacted") == []
    assert result.error is not None
    assert result.error.code == "MODEL_CONTEXT"
    assert len(model_of(one).refused) == 1


# --- when there is no summary -------------------------------------------------------------------


class Mute(WindowModel):
    """Summarises nothing, or refuses to."""

    why: ModelError | None = None

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        if request.purpose == "summary":
            self.requests.append(request)
            if self.why is not None:
                raise self.why
            yield Answer(text=" ")
            return
        async for piece in super().answer(request):
            yield piece


@pytest.mark.parametrize("why", [None, ModelError("no", code="MODEL_REFUSED")])
async def test_without_a_summary_it_goes_on_as_long_as_it_can(
    runtime: MakeRuntime, caplog: pytest.LogCaptureFixture, why: ModelError | None
) -> None:
    model = Mute(BOOK)
    model.why = why
    one = Agent("reader", model=model, tools=[read], compaction=SHORT)
    with caplog.at_level(logging.WARNING, "perdure"):
        async with runtime(one) as rt:
            result = await rt.session("s", agent=one).run("Read the book.")
            assert await facts(rt, "compacted") == []
    assert result.output == "I have read it."
    turns = [request.turn for request in model.summaries]
    assert len(turns) == len(set(turns)) > 0
    assert "no summary, the conversation keeps its length" in caplog.text


async def test_a_summary_that_cannot_be_had_now_is_asked_for_later(
    runtime: MakeRuntime, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Busy(WindowModel):
        busy = True

        async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
            if request.purpose == "summary" and self.busy:
                self.busy = False
                raise ModelUnavailable("busy", retry_after_ms=60_000)
            async for piece in super().answer(request):
                yield piece

    model = Busy(BOOK)
    one = Agent("reader", model=model, tools=[read], compaction=SHORT)
    monkeypatch.setattr(runs, "FOLLOW_S", 0.005)
    async with runtime(one) as rt, time_passes(clock):
        result = await rt.session("s", agent=one).run("Read the book.")
        assert len(await facts(rt, "retry")) == 1
        assert len(await facts(rt, "compacted")) == len(model.summaries) > 0
    assert result.output == "I have read it."
    assert model.turns_asked == [1, 2, 3, 4, 5, 6, 7]


async def test_and_fails_as_too_long_where_it_cannot(runtime: MakeRuntime) -> None:
    model = Mute(BOOK, window=1_200)
    one = Agent("reader", model=model, tools=[read])
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Read the book.")
    assert result.error is not None
    assert result.error.code == "MODEL_CONTEXT"
    assert len(model.refused) == 2


# --- what is shown ------------------------------------------------------------------------------


async def test_a_summary_of_hidden_arguments_is_hidden(runtime: MakeRuntime) -> None:
    opens = {"calls": [{"tool": "unlock", "args": {"pin": "0451"}}]}
    turns = [opens, *reads(1, 2, 3, 4, 5), {"text": "Done."}]
    turns = [{**turn, "summary": "The pin is 0451."} for turn in turns]
    one = reader(turns, compaction=SHORT)
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Open and read.")
        cuts = await facts(rt, "compacted")
        shown = [event.to_json() for event in await rt.session("s").events()]
    assert cuts
    assert "0451" not in str(shown)
    assert "The pin is 0451." in texts(model_of(one).requests[-1].messages)[1]


async def test_nobody_sees_pieces_of_a_summary(in_memory: MakeRuntime) -> None:
    turns = [{**turn, "summary": "quite secret"} for turn in BOOK]
    one = reader(turns, compaction=SHORT)
    async with in_memory(one) as rt:
        seen = [piece async for piece in rt.session("s", agent=one).stream("Read the book.")]
    pieces = "".join(piece.text for piece in seen if isinstance(piece, Delta))
    assert pieces == "I have read it."
    assert isinstance(seen[-1], Result)


async def test_a_message_that_comes_while_it_is_summarised_is_answered(
    runtime: MakeRuntime,
) -> None:
    class Interrupted(WindowModel):
        async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
            if request.purpose == "summary" and not self.summaries:
                await rt.session("s").send("And hurry.")
            async for piece in super().answer(request):
                yield piece

    model = Interrupted(BOOK)
    one = Agent("reader", model=model, tools=[read], compaction=SHORT)
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Read the book.")
        assert len(await facts(rt, "compacted")) == len(model.summaries) > 0
    assert result.output == "I have read it."
    assert "And hurry." in " ".join(texts(model.requests[-1].messages))


async def test_a_run_that_is_cancelled_meanwhile_gets_no_summary(runtime: MakeRuntime) -> None:
    class Cancelled(WindowModel):
        async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
            if request.purpose == "summary":
                await rt.session("s").cancel(by="ana")
            async for piece in super().answer(request):
                yield piece

    one = Agent("reader", model=Cancelled(BOOK), tools=[read], compaction=SHORT)
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Read the book.")
        assert await facts(rt, "compacted") == []
    assert result.state == "cancelled"


async def test_it_survives_a_crash_after_every_commit() -> None:
    """G2"""
    one = reader(compaction=SHORT)

    async def story(rt: Runtime) -> None:
        await rt.session("s", agent=one).run("Read the book.", key="start")

    survived = await survives(story, agents=[one])
    assert survived.points > 10


async def test_the_model_that_stands_in_has_its_own_window_and_price(
    runtime: MakeRuntime,
) -> None:
    key = {"error": {"text": "the key was refused", "code": "MODEL_KEY"}}
    own = ScriptedModel([key] * 9, name="anthropic:claude-sonnet-4-6")
    small = Spare([*reads(*range(1, 9)), {"text": "I have read it."}], name="openai:gpt-4")
    one = Agent("reader", model=own, fallback=small, tools=[read])
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Read the book.")
        cuts = await facts(rt, "compacted")
    assert result.output == "I have read it."
    assert {(cut["provider"], cut["model"]) for cut in cuts} == {("openai", "gpt-4")}
    assert all(0.8 * 8_192 <= cut["tokens"] < 200_000 * 0.8 for cut in cuts)
    requests = result.usage.requests
    assert result.usage.cost == pytest.approx(requests * 7_000 * 30 / 1e6)


GPT: dict[str, Any] = {"provider": "openai", "model": "gpt-4"}


class Spare(ScriptedModel):
    """Counts 7,000 tokens for each request."""

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        async for piece in super().answer(request):
            if isinstance(piece, Answer):
                yield replace(piece, usage=Usage(input_tokens=7_000), **GPT)
            else:
                yield piece


@pytest.mark.parametrize("code", ["MODEL_KEY", "MODEL_QUOTA", "MODEL_UNKNOWN"])
async def test_who_stands_in_also_makes_the_summary(runtime: MakeRuntime, code: str) -> None:
    """A model whose key is refused for the summary is not asked for the turn either."""

    class Expires(WindowModel):
        async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
            if request.turn > len(BOOK):
                self.requests.append(request)
                raise ModelError("no longer", code=code)
            async for piece in super().answer(request):
                yield piece

    own = Expires(BOOK, name="acme:own")
    spare = WindowModel([*BOOK, {"text": "Gladly.", "summary": "They read it."}], window=1_500)
    one = Agent("reader", model=own, fallback=spare, tools=[read], compaction=SHORT)
    bare = replace(one, compaction=False)
    async with runtime(bare) as rt:
        await rt.session("s", agent=bare).run("Read the book.")
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("And again?")
        cuts = await facts(rt, "compacted")
    assert (result.output, result.error) == ("Gladly.", None)
    assert [cut["summary"] for cut in cuts] == ["They read it."]
    assert [one.purpose for one in own.requests[len(BOOK) :]] == ["summary"]
    assert spare.refused == []
