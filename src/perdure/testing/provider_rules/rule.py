"""What a rule is, and how rules look at a request that may be anything."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Format = Literal["anthropic", "openai-chat", "openai-responses"]
Request = Mapping[str, Any]
Signed = Callable[[Mapping[str, Any]], bool]
Led = Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and what only its sender can know of it."""

    body: Request
    strict: bool = True
    signed: Signed | None = None  # whether a thinking block is just as the provider issued it
    led: Led | None = None  # whether an item was issued together with reasoning that led to it

    def messages(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The messages that are objects, with their places."""
        yield from objects(self.body.get("messages"))

    def items(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The input items that are objects, with their places."""
        yield from objects(self.body.get("input"))

    def blocks(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Where each content block stands, whose message it is in, and the block."""
        for place, message in self.messages():
            for number, block in objects(message.get("content")):
                yield f"messages.{place}.content.{number}", str(message.get("role")), block

    def of_type(self, *kinds: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """The content blocks of some types, with where they stand."""
        return ((at, block) for at, _, block in self.blocks() if block.get("type") in kinds)


Check = Callable[[Asked], Iterator[str]]  # where the rule is broken


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule under its id; `says` is the provider's sentence, or what it comes to."""

    id: str
    says: str
    broken_at: Check
    strict: bool = False  # whether only some generations of models have it


class Book:
    """The rules of one provider, as they are written down."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []

    def rule(self, id: str, says: str, *, strict: bool = False) -> Callable[[Check], Check]:  # noqa: A002
        """Write down a rule."""

        def write(check: Check) -> Check:
            self.rules.append(Rule(id, says, check, strict))
            return check

        return write


def objects(value: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a list, with their places; nothing if it is no list."""
    if isinstance(value, list):
        yield from ((n, one) for n, one in enumerate(value) if isinstance(one, dict))


def texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from texts(key)
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)
