"""Calls compared with the tools that are here: no check breaks a list, runs twice, or quotes."""

from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from perdure import Agent, Refused, Runtime, Tool, tool
from perdure.testing import ScriptedModel

pytestmark = pytest.mark.anyio

SECRET = "sk-very-secret"  # noqa: S105 - of a test
TURNS: list[dict[str, Any]] = [
    {"calls": [{"tool": "pay", "args": {"key": SECRET, "cents": 5}}]},
    {"text": "Done."},
]
checked: list[str] = []


def refuse(key: str) -> str:
    """Refuse every key, and quote it."""
    checked.append(key)
    raise ValueError(f"bad key {key}")


@tool(name="pay", requires_approval=True, redact=["key"])
def pay(key: str, cents: int) -> str:
    """Pay."""
    return "paid"


@tool(name="pay", requires_approval=True, redact=["key"])
def stricter(key: Annotated[str, AfterValidator(refuse)], cents: int) -> str:
    """Pay, unless the key is refused."""
    return "paid"


def agent(one: Tool[..., Any]) -> Agent[str]:
    return Agent("shop", model=ScriptedModel(TURNS), tools=[one])


@pytest.fixture
async def store(tmp_path: Path) -> str:
    """Store in which a call waits that the newer tool refuses."""
    url = f"sqlite:///{tmp_path / 'p.db'}"
    async with Runtime(url, agents=[agent(pay)]) as rt:
        await rt.session("s", agent="shop").run("Go")
    checked.clear()
    return url


async def test_lists_run_the_validators_of_a_tool_once_for_a_call(store: str) -> None:
    async with Runtime(store, agents=[agent(stricter)]) as rt:
        for _ in range(3):
            (call,) = [call async for call in rt.pending()]
            assert (call.findings[0].code, "approve" in call.can) == ("ARGS_INVALID", False)
            await rt.session("s").get()
    assert checked == [SECRET]


async def test_what_a_validator_says_of_a_secret_argument_is_not_shown(store: str) -> None:
    """G11"""
    async with Runtime(store, agents=[agent(stricter)]) as rt:
        (call,) = [call async for call in rt.pending()]
        with pytest.raises(Refused) as refused:
            await rt.approve(call.id, by="ana")
        shown = f"{call.to_json()} {(await rt.session('s').get()).to_json()}"
    assert refused.value.code == "ARGS_INVALID"
    assert SECRET not in f"{refused.value} {refused.value.details} {shown}"


@pytest.mark.parametrize("required", [[["key"]], 5])
async def test_a_tool_whose_schema_cannot_be_used_breaks_no_list(store: str, required: Any) -> None:
    """G9: as an MCP server may send it."""

    async def call_server(**_: Any) -> str:
        return "paid"

    schema = {"type": "object", "required": required}
    broken = Tool(call_server, name="pay", parameters=schema, requires_approval=True)
    async with Runtime(store, agents=[agent(broken)]) as rt:
        (call,) = [call async for call in rt.pending()]
        assert call.findings[0].code == "ARGS_INVALID"
        assert (await rt.session("s").get()).state == "waiting"


async def test_doctor_does_not_show_a_secret_argument_of_an_approved_call(store: str) -> None:
    """G11: the call was approved and has not started."""
    async with Runtime(store, agents=[agent(pay)]) as rt:
        (call,) = [call async for call in rt.pending()]
        await rt.approve(call.id, by="ana")
    async with Runtime(store, agents=[agent(stricter)]) as rt:
        health = await rt.doctor()
    assert "ARGS_INVALID" in {finding.code for finding in health.findings}
    assert SECRET not in str(health.to_json())
