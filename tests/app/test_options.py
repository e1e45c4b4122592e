"""Options of a Runtime about webhooks: the same in Python as in YAML."""

import logging
from functools import partial
from typing import Any

import pytest
from tests.support.runtimes import clock, memory

from perdure import Agent, PendingCall, Runtime, options, tool
from perdure.config import agents, settings
from perdure.config.blocks import Block
from perdure.errors import ConfigError, Refused
from perdure.options import WebhookTarget
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
    ops: WebhookTarget = {"url": "https://ops.example/hook", "secret": "x", "on": ["failed"]}
    async with Runtime(memory, webhooks=[ops]) as rt:
        (target,) = rt._resources.outbox.targets
    assert (target.url, target.secret, target.on) == (
        "https://ops.example/hook",
        "x",
        frozenset({"failed"}),
    )


@pytest.mark.parametrize(
    "options, message",
    [
        ({"webhooks": [{"secret": "x"}]}, "a receiver has no 'url'"),
        ({"webhooks": [{"url": "https://x", "key": 1}]}, "an unknown key 'key'"),
        ({"webhooks": [{"url": "https://x", "on": ["fail"]}]}, "on is ['fail']"),
        ({"webhooks": [{"url": "ftp://x"}]}, "webhooks: "),
        ({"webhooks": 5}, "webhooks is 5 and must be a list"),
        ({"webhooks": {"url": "https://x"}}, "must be a list"),
        ({"prices": 5}, "prices is 5 and must be a mapping"),
        ({"recovery": {"running": "stop"}}, "running is 'stop' and must be resume or fail"),
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


AGENT_OPTIONS = ("background", "budget", "compaction", "permissions")


@pytest.mark.parametrize(
    "name, known",
    [
        ("background", "resume_ended, queue_message"),
        ("budget", "turns, tokens, seconds, children, cost"),
        ("compaction", "at, keep, window, first, instructions"),
        ("permissions", "deny, ask, allow"),
        ("prices", "input, output, cache_read, cache_write"),
        ("recovery", "running, poison_after"),
        ("tasks", "root, hooks, sandbox, run_as"),
        ("telemetry", "enabled, content"),
        ("webhooks", "url, secret, on"),
    ],
)
def test_an_unknown_key_of_an_option_is_named_with_the_keys_that_exist(
    name: str, known: str
) -> None:
    wrong: Any = {"contnet": 1}
    value = {"prices": {"acme:x": wrong}, "webhooks": [wrong]}.get(name, wrong)
    create: Any = partial(Agent, "a", model="x:y") if name in AGENT_OPTIONS else Runtime
    with pytest.raises(ConfigError) as caught:
        create(**{name: value})
    assert "unknown key 'contnet'" in caught.value.message
    assert f"it may have {known}" in caught.value.message


@pytest.mark.parametrize("name", AGENT_OPTIONS)
def test_an_option_that_is_not_a_mapping_is_refused(name: str) -> None:
    wrong: Any = ["turns"]
    with pytest.raises(ConfigError, match=f"{name} is .* and must be a mapping"):
        Agent("a", model=ScriptedModel([]), **{name: wrong})


@pytest.mark.parametrize("rules", ["shell", 5, [5], ["shell", None]])
def test_permissions_that_are_not_lists_of_rules_are_refused(rules: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"permissions deny is .* must be a list of rules"
    ) as error:
        Agent("a", model=ScriptedModel([]), permissions={"deny": rules})
    assert error.value.hint


@pytest.mark.parametrize(
    "recovery, message",
    [({"running": "retry"}, "must be resume or fail"), ({"poison_after": 0}, "must be 1 or more")],
)
def test_how_to_recover_is_checked(recovery: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Runtime("memory:", recovery=recovery)


MODELS: dict[str, type[Block]] = {
    "Budget": agents.BudgetConfig,
    "Compaction": agents.CompactionConfig,
    "FollowUps": agents.FollowUpsConfig,
    "Permissions": agents.PermissionsConfig,
    "Price": agents.PriceConfig,
    "RecoveryOptions": settings.RecoveryConfig,
    "TaskOptions": settings.TasksConfig,
    "CommandLimits": settings.ExecutionLimits,
    "TelemetryOptions": settings.TelemetryConfig,
    "WebhookTarget": settings.WebhookConfig,
}


@pytest.mark.parametrize("name", MODELS)
def test_an_option_has_the_keys_that_it_has_in_yaml(name: str) -> None:
    keys = sorted(getattr(options, name).__annotations__)
    assert keys == sorted(MODELS[name].model_fields)


@pytest.mark.parametrize("name", ["worker"])
def test_a_flag_that_is_a_word_is_refused(name: str) -> None:
    options: dict[str, Any] = {name: "no"}
    with pytest.raises(ConfigError, match=f"{name} is 'no' and must be True or False"):
        Runtime("memory:", **options)
