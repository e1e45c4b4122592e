"""Lists that are sent as they are: nothing in them that their provider refuses."""

from typing import Any

from tests.core.conversation.repair.accepted import MAKERS, MARK, accepted
from tests.core.conversation.repair.histories import random_history
from tests.core.conversation.repair.test_properties import TOOL, messages_of

from perdure.core.conversation.messages import AssistantMessage, ToolMessage, UserMessage
from perdure.core.conversation.repair import sendable
from perdure.sessions import sanitize_recovered_messages, validate_message_structure
from perdure.testing.provider_rules import check

OWN = (UserMessage, AssistantMessage, ToolMessage)
NEXT = {"role": "user", "content": "next"}
SYSTEM_ROLES = {"A07", "A08"}  # a caller passes system messages of Anthropic as `system`


def refusals(messages: list[Any]) -> list[str]:
    """Return why every provider refuses the list; empty if one of them accepts it."""
    reasons = []
    for wanted, (key, _) in MAKERS.items():
        body = {"max_tokens": 2048, "tools": [TOOL], "store": False, key: [*messages, NEXT]}
        findings = [f for f in check(body, wanted, strict=False) if f.rule not in SYSTEM_ROLES]
        if not findings:
            return []
        reasons += [str(finding) for finding in findings]
    return reasons


def test_a_provider_accepts_every_sanitized_list_as_it_is() -> None:
    """S2.30 S2.58: without `render`."""
    for seed in range(1_500):
        for messages in messages_of(random_history(seed)):
            sanitized = sanitize_recovered_messages(messages).messages
            if not any(isinstance(message, OWN) for message in sanitized):
                assert refusals(sanitized) == [], seed
            again = sanitize_recovered_messages(sanitized)
            assert (again.messages, again.issues) == (sanitized, []), seed
            assert validate_message_structure(sanitized).valid, seed


def test_a_list_that_its_provider_accepts_stays_the_same() -> None:
    """S2.53"""
    for wanted in MAKERS:
        for seed in range(300):
            messages = accepted(seed, wanted)
            if messages is not None:
                sent, issues = sendable(messages)
                assert all(a is b for a, b in zip(sent, messages, strict=True)), (wanted, seed)
                assert issues == []


def test_the_last_four_cache_marks_are_kept() -> None:
    """S2.30"""
    blocks = [{"type": "text", "text": str(n), **MARK} for n in range(6)]
    messages = [{"role": "user", "content": blocks[:3]}, {"role": "user", "content": blocks[3:]}]
    sent, (issue,) = sendable(messages)
    marked = [b["text"] for message in sent for b in message["content"] if "cache_control" in b]
    assert marked == ["2", "3", "4", "5"]
    assert "cache_control" in issue.details
    assert "cache_control" in blocks[0]


def test_keys_that_no_provider_accepts_are_an_error_and_are_removed() -> None:
    """S2.30 S2.55"""
    answer = {"role": "assistant", "content": "hi", "provider": "anthropic", "model": "claude"}
    validation = validate_message_structure([NEXT, answer])
    assert not validation.valid
    assert sanitize_recovered_messages([NEXT, answer]).messages[1].keys() == {"role", "content"}
