"""Samples for each rule: a request that passes it and one that fails it."""

from dataclasses import dataclass
from typing import Any, Final

from perdure.testing.provider_rules.rule import Format
from perdure.testing.provider_rules.samples_anthropic import SAMPLES as OF_ANTHROPIC
from perdure.testing.provider_rules.samples_openai import CHAT, RESPONSES


@dataclass(frozen=True, slots=True)
class Sample:
    """Request that passes a rule, and one that fails it."""

    format: Format
    passes: dict[str, Any]
    fails: dict[str, Any]


SAMPLES: Final[dict[str, Sample]] = {
    **{rule: Sample("anthropic", *pair) for rule, pair in OF_ANTHROPIC.items()},
    **{rule: Sample("openai-chat", *pair) for rule, pair in CHAT.items()},
    **{rule: Sample("openai-responses", *pair) for rule, pair in RESPONSES.items()},
}
