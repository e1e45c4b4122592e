"""Spans, as OpenTelemetry's own library collects them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import SecretStr
from tests.runtime.mcp.world import World

from perdure import Agent, File, Runtime, ToolError, tool
from perdure.errors import ConfigError
from perdure.runtime.telemetry import SCHEMA_URL
from perdure.testing import ScriptedModel
from perdure.testing.endpoint import fake_endpoint


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What is collected during a test; the provider of a program is set only once."""
    collected = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(collected))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield collected
    provider.shutdown()


@tool
def look(what: str) -> str:
    """Look."""
    return f"seen {what}"


@tool(requires_approval=True)
def refund(cents: int) -> str:
    """Refund."""
    return f"refunded {cents}"


@tool
def fail() -> str:
    """Fail."""
    raise ToolError("of the words of this nobody is told", code="SOLD_OUT")


@tool
def log_in(password: SecretStr) -> str:
    """Log in."""
    return "in"


def clerk(*calls: tuple[str, dict[str, Any]]) -> Agent[str]:
    turns: list[dict[str, Any]] = [{"calls": [{"tool": t, "args": a}]} for t, a in calls]
    turns.append({"text": "All done."})
    tools: list[Any] = [look, refund, fail, log_in]
    return Agent("clerk", model=ScriptedModel(turns), tools=tools, instructions="Help.")


def named(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


def told(spans: InMemorySpanExporter) -> str:
    return "\n".join(span.to_json() for span in spans.get_finished_spans())


async def test_a_drive_is_a_trace_with_its_model_and_tool_calls(
    spans: InMemorySpanExporter,
) -> None:
    one = clerk(("look", {"what": "a cat"}))
    async with Runtime("memory:", agents=[one]) as rt:
        await rt.session("s", agent=one).run("Go")
    drive = named(spans)["invoke_agent clerk"]
    names = [span.name for span in spans.get_finished_spans()]
    chat = next(name for name in names if name.startswith("chat "))
    assert names == [chat, "execute_tool look", chat, "invoke_agent clerk"]
    assert drive.parent is None
    assert drive.context is not None
    for span in spans.get_finished_spans()[:-1]:
        assert span.parent is not None
        assert span.parent.span_id == drive.context.span_id
    said = dict(drive.attributes or {})
    assert said["gen_ai.operation.name"] == "invoke_agent"
    assert (said["gen_ai.agent.name"], said["gen_ai.conversation.id"]) == ("clerk", "s")
    assert said["perdure.state"] == "completed"
    called = dict(named(spans)["execute_tool look"].attributes or {})
    assert called["gen_ai.operation.name"] == "execute_tool"
    assert called["gen_ai.tool.name"] == "look"
    assert str(called["gen_ai.tool.call.id"]).startswith("call_")
    asked = dict(named(spans)[chat].attributes or {})
    assert asked["gen_ai.operation.name"] == "chat"
    assert asked["gen_ai.provider.name"] == "scripted"
    assert not any(name.startswith("gen_ai.system") for name in asked)


async def test_a_drive_after_a_restart_is_a_new_trace_linked_to_the_one_before(
    spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/h.db"
    one = clerk(("refund", {"cents": 5}))
    async with Runtime(url, agents=[one]) as rt:
        (call,) = (await rt.session("s", agent=one).run("Go")).pending
        await rt.approve(call.id, by="ana")
    first = named(spans)["invoke_agent clerk"]
    spans.clear()
    async with Runtime(url, agents=[one]) as rt:
        assert (await rt.session("s").run()).output == "All done."
    second = named(spans)["invoke_agent clerk"]
    assert first.context is not None
    assert second.context is not None
    assert second.context.trace_id != first.context.trace_id
    (link,) = second.links
    assert (link.context.trace_id, link.context.span_id) == (
        first.context.trace_id,
        first.context.span_id,
    )


async def test_a_drive_is_linked_to_who_asked_for_it(spans: InMemorySpanExporter) -> None:
    one = clerk()
    tracer = trace.get_tracer("program")
    async with Runtime("memory:", agents=[one]) as rt:
        with tracer.start_as_current_span("request") as asked:
            await rt.session("s", agent=one).run("Go")
    (link,) = named(spans)["invoke_agent clerk"].links
    assert link.context.span_id == asked.get_span_context().span_id


@pytest.mark.parametrize("kind", ["half a character", "itself", "file"])
async def test_what_cannot_be_told_changes_nothing_of_what_was_done(
    spans: InMemorySpanExporter, kind: str
) -> None:
    """G3"""

    @tool
    def make() -> Any:
        """Make something that no span can hold."""
        itself: dict[str, Any] = {}
        itself["itself"] = itself
        odd = {"half a character": {"a": "\ud800"}, "file": File("image/png", data=b"x" * 9)}
        return odd.get(kind, itself)

    turns: list[dict[str, Any]] = [{"calls": [{"tool": "make", "args": {}}]}, {"text": "Made."}]
    one = Agent("maker", model=ScriptedModel(turns), tools=[make])
    async with Runtime("memory:", agents=[one], telemetry={"content": True}) as rt:
        await rt.session("s", agent=one).run("Go")
        results = [event for event in await rt.session("s").events() if event.type == "tool_result"]
    assert [event.data.get("isError") for event in results] == [None]
    said = dict(named(spans)["execute_tool make"].attributes or {})
    assert "error.type" not in said
    assert "[" in str(said["gen_ai.tool.call.result"])  # the mark that stands for it


async def test_no_content_is_told_unless_it_is_asked_for(spans: InMemorySpanExporter) -> None:
    one = clerk(("look", {"what": "a cat"}), ("fail", {}))
    async with Runtime("memory:", agents=[one]) as rt:
        await rt.session("s", agent=one).run("Go on")
    text = told(spans)
    for content in ("Go on", "a cat", "seen", "All done.", "Help.", "nobody is told"):
        assert content not in text
    failed = named(spans)["execute_tool fail"]
    assert (failed.attributes or {})["error.type"] == "SOLD_OUT"
    assert not failed.status.is_ok


async def test_content_is_told_where_it_is_asked_for(spans: InMemorySpanExporter) -> None:
    one = Agent("clerk", model=clerk(("look", {"what": "a cat"})).model, tools=[look])
    async with Runtime("memory:", agents=[one], telemetry={"content": True}) as rt:
        await rt.session("s", agent=one).run("Go on")
    text = told(spans)
    for content in ("Go on", "a cat", "seen a cat", "All done."):
        assert content in text


async def test_a_secret_argument_is_told_to_nobody(spans: InMemorySpanExporter) -> None:
    one = clerk(("log_in", {"password": "swordfish"}))
    async with Runtime("memory:", agents=[one], telemetry={"content": True}) as rt:
        await rt.session("s", agent=one).run("Go on")
    assert "swordfish" not in told(spans)
    arguments = (named(spans)["execute_tool log_in"].attributes or {})["gen_ai.tool.call.arguments"]
    assert arguments == '{"password":"***"}'


async def test_spans_can_be_switched_off(spans: InMemorySpanExporter) -> None:
    one = clerk()
    async with Runtime("memory:", agents=[one], telemetry={"enabled": False}) as rt:
        await rt.session("s", agent=one).run("Go")
        events = await rt.session("s").events()
    assert spans.get_finished_spans() == ()
    assert all("trace" not in event.data for event in events)


async def test_a_trace_goes_on_in_an_mcp_server(
    spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    world = World(tmp_path)
    one = Agent("clerk", model=clerk(("look", {"what": "x"})).model, tools=[world.program()])
    async with Runtime("memory:", agents=[one]) as rt:
        await rt.session("s", agent=one).run("Go")
    (line,) = world.done()
    drive = named(spans)["invoke_agent clerk"].context
    assert drive is not None
    assert line["traceparent"].split("-")[1] == f"{drive.trace_id:032x}"


def test_a_word_that_telemetry_does_not_have_is_told() -> None:
    with pytest.raises(ConfigError, match="an unknown key 'contents'; did you mean 'content'"):
        Runtime("memory:", telemetry={"contents": True})  # type: ignore[arg-type]


def test_a_program_without_a_collector_loads_no_telemetry() -> None:
    program = (
        "import anyio, sys\n"
        "from perdure import Agent, Runtime\n"
        "from perdure.testing import ScriptedModel\n"
        "async def main():\n"
        "    one = Agent('a', model=ScriptedModel([{'text': 'hi'}]))\n"
        "    async with Runtime('memory:', agents=[one]) as rt:\n"
        "        print((await rt.session('s', agent=one).run('Go')).output)\n"
        "anyio.run(main)\n"
        "print(sorted(name for name in sys.modules if name.startswith('opentelemetry')))\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert shown.stdout.split("\n")[:2] == ["hi", "[]"]


async def test_the_scope_has_a_version_and_the_schema_of_the_conventions(
    spans: InMemorySpanExporter,
) -> None:
    one = clerk()
    async with Runtime("memory:", agents=[one]) as rt:
        await rt.session("s", agent=one).run("Go")
    for span in spans.get_finished_spans():
        scope = span.instrumentation_scope
        assert scope is not None
        assert (scope.name, scope.version) == ("perdure", metadata.version("perdure"))
        assert scope.schema_url == SCHEMA_URL


async def test_instructions_are_text_parts(spans: InMemorySpanExporter) -> None:
    one = Agent("clerk", model=ScriptedModel([{"text": "Done."}]), instructions="Help.")
    async with Runtime("memory:", agents=[one], telemetry={"content": True}) as rt:
        await rt.session("s", agent=one).run("Go")
    (chat,) = [span for span in spans.get_finished_spans() if span.name.startswith("chat ")]
    instructions = json.loads(str((chat.attributes or {})["gen_ai.system_instructions"]))
    assert instructions == [{"type": "text", "content": "Help."}]


MODELS = {
    "anthropic:claude-sonnet-4-6": "ANTHROPIC_BASE_URL",
    "openai:gpt-5": "OPENAI_BASE_URL",
    "openai-responses:gpt-5": "OPENAI_BASE_URL",
}


@pytest.mark.parametrize("model", MODELS)
async def test_a_request_to_a_provider_is_one_span_with_the_id_of_the_response(
    spans: InMemorySpanExporter, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library of a provider may create spans too, and read none of the diverted stream."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "any")
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    turns: list[dict[str, Any]] = [{"calls": [{"tool": "look", "args": {"what": "a cat"}}]}]
    with fake_endpoint([*turns, {"text": "All done."}]) as endpoint:
        suffix = "" if model.startswith("anthropic") else "/v1"
        monkeypatch.setenv(MODELS[model], f"{endpoint.url}{suffix}")
        one = Agent("clerk", model=model, tools=[look])
        async with Runtime("memory:", agents=[one]) as rt:
            assert (await rt.session("s", agent=one).run("Go")).output == "All done."
    finished = spans.get_finished_spans()
    assert {span.instrumentation_scope.name for span in finished if span.instrumentation_scope} == {
        "perdure"
    }
    assert not any(span.status.status_code is trace.StatusCode.ERROR for span in finished)
    chats = [span for span in finished if span.name.startswith("chat ")]
    ids = [str((span.attributes or {}).get("gen_ai.response.id")) for span in chats]
    assert len(set(ids)) == 2
    assert "None" not in ids
