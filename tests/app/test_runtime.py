"""Opening, closing and opening again."""

import asyncio
from pathlib import Path
from traceback import format_exception

import pytest

from perdure import Agent, PerdureError, Runtime
from perdure.errors import ConfigError
from perdure.runtime.models.scripted import ScriptedModel
from perdure.store.base import Store
from perdure.store.memory import MemoryStore


def agent() -> Agent[str]:
    return Agent("a", model=ScriptedModel([{"text": "one"}, {"text": "two"}]))


@pytest.mark.parametrize("durable", [False, True])
def test_a_runtime_can_be_opened_again_on_another_event_loop(tmp_path: Path, durable: bool) -> None:
    rt = Runtime(f"sqlite:///{tmp_path}/h.db" if durable else "memory:", agents=[agent()])

    async def main(rt: Runtime) -> str | None:
        return (await rt.session("s", agent="a").run("Go")).output

    assert [rt.run_sync(main), rt.run_sync(main)] == ["one", "two"]


@pytest.mark.parametrize("durable", [False, True])
async def test_a_runtime_that_is_not_open_says_how_to_open_it(
    tmp_path: Path, durable: bool
) -> None:
    rt = Runtime(f"sqlite:///{tmp_path}/h.db" if durable else "memory:", agents=[agent()])
    with pytest.raises(PerdureError, match="not open") as error:
        await rt.session("s", agent="a").run("Go")
    assert "async with" in (error.value.hint or "")
    with pytest.raises(PerdureError, match="the runtime is not open") as error:
        await rt.work()
    assert "async with" in (error.value.hint or "")
    async with asyncio.timeout(10), rt:
        assert (await rt.session("s", agent="a").run("Go")).output == "one"


@pytest.mark.parametrize(
    "url, why",
    [
        ("mysql://ana:secret@db/x", "is unknown"),
        ("sqlite:perdure.db", "is unknown"),
    ],
)
def test_a_store_that_cannot_be_had_is_refused_in_one_line(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as error:
        Runtime(url)
    assert error.value.code == "STORE_UNKNOWN"
    assert "secret" not in error.value.message


def test_async_waiting_needs_a_store_that_outlives_the_process() -> None:
    """S4.48: never a silent fall-back."""
    one = Agent("a", model=ScriptedModel([]), hitl="async")
    Runtime("sqlite:///nowhere.db", agents=[one])
    stores: list[str | Store] = ["memory:", MemoryStore()]
    for store in stores:
        with pytest.raises(ConfigError) as caught:
            Runtime(store, agents=[one])
        assert caught.value.message == (
            "agent 'a': async HITL requires a durable session_store ('memory:' is memory)"
        )


def test_an_error_that_nobody_catches_says_below_it_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(ConfigError) as error:
        Runtime("memory:", agents=[Agent("a", model="anthropic:claude-sonnet-4-6")])
    *_, told, hint = "".join(format_exception(error.value)).splitlines()
    assert told.endswith("agent 'a': the provider anthropic needs a key")
    assert hint == "hint: set ANTHROPIC_API_KEY"
