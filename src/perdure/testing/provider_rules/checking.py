"""Holding a request against a provider's rules."""

from dataclasses import dataclass
from typing import Final, get_args

from perdure.testing.provider_rules.anthropic import ANTHROPIC
from perdure.testing.provider_rules.openai_chat import CHAT
from perdure.testing.provider_rules.openai_responses import RESPONSES
from perdure.testing.provider_rules.rule import Asked, Format, Led, Request, Rule, Signed

RULES: Final[dict[Format, tuple[Rule, ...]]] = {
    "anthropic": tuple(ANTHROPIC.rules),
    "openai-chat": tuple(CHAT.rules),
    "openai-responses": tuple(RESPONSES.rules),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that a request breaks, where, and what the provider says."""

    rule: str
    where: str
    says: str

    def __str__(self) -> str:
        return f"{self.rule} at {self.where}: {self.says}"


def check(
    request: Request,
    format: Format,  # noqa: A002 - as the renderers call it
    *,
    strict: bool = True,
    signed: Signed | None = None,
    led: Led | None = None,
) -> list[Finding]:
    """Every rule that the request breaks; empty if the provider would take it.

    `signed` says of a thinking block whether it is byte for byte what the model that is asked
    issued; without it signatures are taken on trust. `led` says of an item with an id whether it
    was issued with reasoning; without it every such item is taken for one.
    """
    if format not in RULES:
        raise ValueError(f"no format {format!r}; there are {', '.join(get_args(Format))}")
    asked = Asked(request, strict, signed, led)
    return [
        Finding(rule.id, where, rule.says)
        for rule in RULES[format]
        if strict or not rule.strict
        for where in rule.broken_at(asked)
    ]
