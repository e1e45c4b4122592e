"""Check of a request against the rules of a provider."""

from dataclasses import dataclass
from typing import Final, get_args

from perdure.testing.provider_rules.anthropic import ANTHROPIC
from perdure.testing.provider_rules.openai_chat import CHAT
from perdure.testing.provider_rules.openai_responses import RESPONSES
from perdure.testing.provider_rules.rule import CheckedRequest, Format, Led, Request, Rule, Signed

RULES: Final[dict[Format, tuple[Rule, ...]]] = {
    "anthropic": tuple(ANTHROPIC.rules),
    "openai-chat": tuple(CHAT.rules),
    "openai-responses": tuple(RESPONSES.rules),
}


@dataclass(frozen=True, slots=True)
class Violation:
    """Violation of a rule: where, and the provider's message."""

    rule: str
    where: str
    says: str

    def __str__(self) -> str:
        return f"{self.rule} at {self.where}: {self.says}"


def check(
    request: Request,
    format: Format,  # noqa: A002
    *,
    strict: bool = True,
    signed: Signed | None = None,
    led: Led | None = None,
) -> list[Violation]:
    """Return every violation in the request; empty if the provider would accept it.

    `signed` tells whether a thinking block is byte for byte what the requested model issued;
    without it signatures are trusted. `led` tells whether an item with an id was issued with
    reasoning; without it every such item counts as one.
    """
    if format not in RULES:
        raise ValueError(f"unknown format {format!r}; use {', '.join(get_args(Format))}")
    checked = CheckedRequest(request, strict, signed, led)
    return [
        Violation(rule.id, where, rule.says)
        for rule in RULES[format]
        if strict or not rule.strict
        for where in rule.find_violations(checked)
    ]
