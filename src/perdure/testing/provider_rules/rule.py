"""Rules, and access to the parts of a request that may be malformed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Format = Literal["anthropic", "openai-chat", "openai-responses"]
Request = Mapping[str, Any]
Signed = Callable[[Mapping[str, Any]], bool]
Led = Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """Request to check, with what only its sender can know about it."""

    body: Request
    strict: bool = True
    signed: Signed | None = None  # True for a thinking block as the provider issued it
    led: Led | None = None  # True for an item that the provider issued with reasoning

    def messages(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the messages that are objects, with their indexes."""
        yield from objects(self.body.get("messages"))

    def items(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the input items that are objects, with their indexes."""
        yield from objects(self.body.get("input"))

    def blocks(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield each content block with its path and the role of its message."""
        for index, message in self.messages():
            for number, block in objects(message.get("content")):
                yield f"messages.{index}.content.{number}", str(message.get("role")), block

    def blocks_of_type(self, *kinds: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the content blocks of some types with their paths."""
        return ((path, block) for path, _, block in self.blocks() if block.get("type") in kinds)


RuleCheck = Callable[[CheckedRequest], Iterator[str]]  # paths at which the rule is broken


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule with its id; `says` is the provider's message, or its substance."""

    id: str
    says: str
    find_violations: RuleCheck
    strict: bool = False  # True if only some generations of models have it


class RuleSet:
    """Rules of one provider, in the order of their definition."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []

    def rule(self, id: str, says: str, *, strict: bool = False) -> Callable[[RuleCheck], RuleCheck]:  # noqa: A002
        """Add the decorated check as a rule."""

        def add(check: RuleCheck) -> RuleCheck:
            self.rules.append(Rule(id, says, check, strict))
            return check

        return add


def objects(value: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a list with their indexes; nothing if it is not a list."""
    if isinstance(value, list):
        yield from ((n, item) for n, item in enumerate(value) if isinstance(item, dict))


def texts(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from texts(key)
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)
