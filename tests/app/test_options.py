"""Options of a Runtime about webhooks: the same in Python as in YAML."""

import logging
from typing import Any

import pytest
from tests.support.runtimes import clock, memory

from perdure import Agent, PendingCall, Runtime, tool
from perdure.errors import ConfigError, Refused
from perdure.store.memory import MemoryStore
from perdure.testing import ScriptedModel

__all__ = ["clock", "memory"]

PRIVATE = "http://10.1.2.3/hook"


@tool(deferred=True)
def deploy(call: PendingCall) -> str:
    """Deploy."""
    return call.callback_secret


def ci() -> Agent[str]:
    turns: list[dict[str, Any]] = [{"calls": [{"tool": "deploy"}]}, {"text": "Done."}]
    return Agent("ci", model=ScriptedModel(turns), tools=[deploy])


async def test_a_private_receiver_is_refused_unless_the_program_allows_it(
    memory: MemoryStore,
) -> None:
    """S0.60"""
    async with Runtime(memory, agents=[ci()]) as rt:
        with pytest.raises(Refused):
            await rt.session("a", agent="ci", notify_url=PRIVATE).send("Go")
    async with Runtime(memory, agents=[ci()], webhook_allow=["10.0.0.0/8"]) as rt:
        await rt.session("b", agent="ci", notify_url=PRIVATE).send("Go")


async def test_a_program_names_receivers_as_yaml_does(memory: MemoryStore) -> None:
    """S0.60"""
    receivers = [{"url": "https://ops.example/hook", "secret": "x", "on": ["failed"]}]
    async with Runtime(memory, webhooks=receivers) as rt:
        (target,) = rt._resources.outbox.targets
    assert (target.url, target.secret, target.on) == (
        "https://ops.example/hook",
        "x",
        frozenset({"failed"}),
    )


@pytest.mark.parametrize(
    "options, message",
    [
        ({"webhooks": [{"secret": "x"}]}, "a receiver has no url"),
        ({"webhooks": [{"url": "https://x", "key": 1}]}, "unknown key 'key'"),
        ({"webhooks": [{"url": "https://x", "on": ["fail"]}]}, "on is ['fail']"),
        ({"webhooks": [{"url": "ftp://x"}]}, "webhooks: "),
        ({"webhook_allow": "10.0.0.0/8"}, "must be a list"),
        ({"webhook_allow": ["10.0.0.0/99"]}, "webhook_allow: "),
    ],
)
def test_a_wrong_option_is_named_with_what_to_write(options: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Runtime("memory:", **options)
    assert message in caught.value.message
    assert caught.value.hint


async def test_a_missing_secret_is_logged_for_the_operator(
    memory: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with Runtime(memory, agents=[ci()], public_url="https://x.example") as rt:
        await rt.session("s", agent="ci").send("Go")
        with caplog.at_level(logging.WARNING, "perdure"):
            await rt.work(once=True)
    texts = [record.getMessage() for record in caplog.records]
    assert any(text.startswith("deploy: there is no webhook_secret") for text in texts)
    assert any("Runtime(webhook_secret=…)" in text and "call p_" in text for text in texts)


@pytest.mark.parametrize("name", ["resume_running", "worker"])
def test_a_flag_that_is_a_word_is_refused(name: str) -> None:
    options: dict[str, Any] = {name: "no"}
    with pytest.raises(ConfigError, match=f"{name} is 'no' and must be True or False"):
        Runtime("memory:", **options)
