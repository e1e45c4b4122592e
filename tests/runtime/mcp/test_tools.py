"""The tools of an MCP server are tools as any other."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.runtime.mcp.world import SECRET, World
from tests.support.findings import problem_of

from perdure import Agent, Delta, Refused, Runtime, mcp, tool
from perdure.errors import ConfigError
from perdure.mcp import MCPServer, MCPTools
from perdure.runtime.mcp.pool import ServerPool
from perdure.runtime.mcp.servers import ListedTool
from perdure.runtime.mcp.tools import build_tools, safe_name
from perdure.testing import ScriptedModel

MakeServer = Callable[..., MCPServer]


def clerk(*calls: tuple[str, dict[str, Any]], tools: Any, **options: Any) -> Agent[str]:
    turns = [{"calls": [{"tool": name, "args": args}]} for name, args in calls]
    return Agent("clerk", model=ScriptedModel([*turns, {"text": "Done."}]), tools=tools, **options)


def asked(agent: Agent[Any]) -> Any:
    """The tools that the model was shown."""
    assert isinstance(agent.model, ScriptedModel)
    return {spec.name: spec for spec in agent.model.requests[0].tools}


async def results(rt: Runtime) -> list[Any]:
    events = await rt.session("s").events()
    return [e.data["result"] for e in events if e.type == "tool_result"]


async def test_a_tool_of_a_server_is_shown_to_the_model_and_called(
    server: MakeServer, world: World
) -> None:
    one = clerk(("look", {"what": "a cat"}), tools=[server()])
    async with Runtime("memory:", agents=[one]) as rt:
        result = await rt.session("s", agent=one).run("Go")
        assert (result.output, await results(rt)) == ("Done.", ["seen a cat"])
    spec = asked(one)["look"]
    assert spec.description == "Look at something."
    assert spec.parameters["properties"]["what"]["type"] == "string"
    assert spec.parameters["required"] == ["what"]
    assert "dotted_name" in asked(one)
    (line,) = world.done()
    assert line["effect"].startswith("e_")


async def test_only_the_chosen_tools_are_there_under_their_prefix(world: World) -> None:
    one = clerk(
        ("s_look", {"what": "x"}), tools=[world.program().tools(only=["look"], prefix="s_")]
    )
    async with Runtime("memory:", agents=[one]) as rt:
        await rt.session("s", agent=one).run("Go")
        assert await results(rt) == ["seen x"]
    assert list(asked(one)) == ["s_look"]


async def test_a_server_is_found_by_its_name(world: World) -> None:
    one = clerk(("look", {"what": "x"}), tools=[mcp.shop["look"]])
    async with Runtime("memory:", agents=[one], mcp_servers=[world.program()]) as rt:
        await rt.session("s", agent=one).run("Go")
        assert await results(rt) == ["seen x"]


def test_a_name_that_stands_for_no_server_is_told() -> None:
    with pytest.raises(ConfigError, match="agent 'clerk': there is no MCP server 'shp'"):
        Runtime("memory:", agents=[clerk(tools=[mcp.shp])])


def test_two_servers_of_one_name_are_told() -> None:
    one, other = MCPServer("a", command=["x"]), MCPServer("a", command=["y"])
    with pytest.raises(ConfigError, match="there are two MCP servers named 'a'"):
        Runtime("memory:", agents=[clerk(tools=[one, other])])


async def test_everything_that_a_tool_can_return_is_kept(world: World) -> None:
    one = clerk(("mixed", {}), ("dotted_name", {}), tools=[world.program()])
    async with Runtime("memory:", agents=[one]) as rt:
        await rt.session("s", agent=one).run("Go")
        mixed, structured = await results(rt)
    kinds = [(part["type"], part.get("text") or part["mediaType"]) for part in mixed]
    assert kinds == [
        ("text", "a picture:"),
        ("file", "image/png"),
        ("text", "[resource report file:///r.pdf]"),
        ("text", "inside"),
    ]
    assert '"answer":42' in structured.replace(" ", "").replace("\n", "")


async def test_what_goes_wrong_in_a_tool_is_told_to_the_model(world: World) -> None:
    one = clerk(("fail", {}), ("look", {"wat": 1}), tools=[world.program()])
    async with Runtime("memory:", agents=[one]) as rt:
        assert (await rt.session("s", agent=one).run("Go")).output == "Done."
        events = await rt.session("s").events()
    failed, refused = (e.data for e in events if e.type == "tool_result")
    assert failed["isError"]
    assert "there is no such thing" in failed["result"]
    assert refused["isError"]
    assert "what" in refused["result"]
    assert world.tools() == []


async def test_progress_is_shown_to_who_watches(world: World) -> None:
    one = clerk(("step", {}), tools=[world.program()])
    async with Runtime("memory:", agents=[one]) as rt:
        seen = [item async for item in rt.session("s", agent=one).stream("Go")]
    told = [item.text for item in seen if isinstance(item, Delta) and item.kind == "progress"]
    assert told == ["begun (25 %)", "halfway (50 %)"]


# --- approval and idempotence ---------------------------------------------------------------------

LISTED = (
    ListedTool("look", "", {}, only_reads=True),
    ListedTool("charge", "", {}),
    ListedTool("note", "", {}, may_destroy=False),
    ListedTool("put", "", {}, may_destroy=False, may_repeat=True),
)
HINTED = {  # approval, may be repeated
    "look": (False, True),
    "charge": (True, False),
    "note": (False, False),
    "put": (False, True),
}


@pytest.mark.parametrize(
    "said, expected",
    [
        ({}, HINTED),
        ({"requires_approval": True}, {n: (True, r) for n, (_, r) in HINTED.items()}),
        ({"requires_approval": False}, {n: (False, r) for n, (_, r) in HINTED.items()}),
        (
            {"requires_approval": ["note"], "idempotent": ["charge"]},
            {n: (n == "note", n == "charge") for n in HINTED},
        ),
        # A name that is not there might have meant any of them.
        ({"requires_approval": ["notes"]}, {n: (True, r) for n, (_, r) in HINTED.items()}),
        ({"idempotent": False}, {n: (a, False) for n, (a, _) in HINTED.items()}),
    ],
)
def test_what_is_said_here_counts_more_than_what_the_server_hints(
    said: dict[str, Any], expected: dict[str, tuple[bool, bool]]
) -> None:
    tools = build_tools(MCPTools("shop", **said), LISTED, ServerPool())
    assert {t.name: (t.approval.when, t.idempotent) for t in tools} == expected


def test_a_tool_that_no_model_could_call_is_left_out() -> None:
    strange = ListedTool("odd", "", {"type": "array"})
    assert [
        t.name for t in build_tools(MCPTools("shop"), (*LISTED, strange), ServerPool())
    ] == list(HINTED)


async def test_a_tool_that_may_destroy_waits_for_a_person(server: MakeServer, world: World) -> None:
    one = clerk(("charge", {"cents": 5}), tools=[server()])
    async with Runtime("memory:", agents=[one]) as rt:
        (call,) = (await rt.session("s", agent=one).run("Go")).pending
        assert (call.tool, call.args, world.tools()) == ("charge", {"cents": 5}, [])
        with pytest.raises(Refused, match="cents"):
            await rt.approve(call.id, by="ana", args={"cents": "five"})
        await rt.approve(call.id, by="ana", args={"cents": 4})
        assert (await rt.session("s").run()).output == "Done."
        assert await results(rt) == ["charged 4"]


# --- names ----------------------------------------------------------------------------------------


def test_a_name_is_made_one_that_every_provider_takes() -> None:
    assert safe_name("search.issues/v2") == "search_issues_v2"
    long, other = safe_name("x" * 100), safe_name("x" * 101)
    assert (len(long), len(other)) == (64, 64)
    assert long != other


async def test_a_tool_with_the_name_of_another_is_a_problem_that_is_told(world: World) -> None:
    @tool
    def look(what: str) -> str:
        """Look."""
        return what

    one = clerk(tools=[look, world.program()])
    async with Runtime("memory:", agents=[one]) as rt:
        result = await rt.session("s", agent=one).run("Go")
    problem = problem_of(result)
    assert problem is not None
    assert problem.code == "TOOL_NAME_CLASH"
    assert "two tools named 'look'" in problem.text


# --- secrets --------------------------------------------------------------------------------------


def test_a_server_shows_no_secret() -> None:
    web = MCPServer("a", url="https://h/key-of-mine", headers={"Authorization": SECRET})
    shown = repr((MCPServer("b", command=["x", SECRET], env={"TOKEN": SECRET}), web, web.tools()))
    assert SECRET not in shown
    assert "key-of-mine" not in shown


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"command": ["x"], "url": "http://h"},
        {"command": "x"},
        {"command": ["x"], "headers": {"A": "b"}},
        {"url": "http://h", "env": {"A": "b"}},
    ],
)
def test_a_server_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="MCP server 'a'"):
        MCPServer("a", **wrong)
