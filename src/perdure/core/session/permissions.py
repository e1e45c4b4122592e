"""What an agent's tools may do: rules for calls by tool and argument, and what people remembered.

A rule is `tool` or `tool:argument=value`, with `*`, `?` and `[…]` as in file names, such as
`shell:cmd=rm*`. Rules that deny count first, then those that allow, then those that ask.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from perdure.core.log.redaction import masked
from perdure.core.session.calls import digest
from perdure.errors import Refused

Effect = Literal["deny", "allow", "ask"]

NOT_TRACKED: Final = "Tool requires approval but task tracking not enabled, denying"
EFFECTS: Final[tuple[Effect, ...]] = ("deny", "allow", "ask")  # in the order in which they count
_RULE: Final = re.compile(r"([^:=\s]+)(?::(?:\*|([^:=\s]+)=(.*)))?", re.DOTALL)
_PATTERN: Final = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Rule:
    """Calls of some tools, or only those of them whose argument has such a value."""

    text: str
    tool: str
    argument: str | None = None
    value: str = "*"

    @property
    def names_one_tool(self) -> bool:
        """Whether it is about one tool by its name."""
        return _PATTERN.search(self.tool) is None

    def covers(self, names: Collection[str], params: Mapping[str, Any]) -> bool:
        """Whether it is about this call of a tool of these names."""
        if not any(fnmatchcase(name, self.tool) for name in names):
            return False
        if self.argument is None:
            return True
        if self.argument not in params:
            return False
        return fnmatchcase(_text(params[self.argument]), self.value)


def _text(value: Any) -> str:
    """A value as rules see it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def rule_of(text: str) -> Rule:
    """The rule that a text says. Raises Refused."""
    found = _RULE.fullmatch(text)
    if found is None:
        raise Refused(
            f"{text!r} is not a permission rule",
            code="PERMISSION_INVALID",
            hint="such as refund, shell:cmd=rm* or gh_*",
        )
    return Rule(text, found[1], found[2], found[3] if found[2] else "*")


@dataclass(frozen=True, slots=True)
class Permissions:
    """The rules of one agent."""

    rules: Mapping[Effect, Sequence[Rule]]

    def judge(
        self, names: Collection[str], params: Mapping[str, Any]
    ) -> tuple[Effect, Rule] | None:
        """What the rules say about a call, and which one says it; None if none does."""
        for effect in EFFECTS:
            for rule in self.rules.get(effect, ()):
                if rule.covers(names, params):
                    return effect, rule
        return None

    def denies(self, names: Collection[str], params: Mapping[str, Any]) -> Rule | None:
        """The rule that forbids a call, if one does."""
        said = self.judge(names, params)
        return said[1] if said is not None and said[0] == "deny" else None


def denial(tool: str, rule: Rule) -> str:
    """What the model is told of a call that the rules forbid."""
    return (
        f"Not allowed: the permissions of this agent deny this call to {tool} ({rule.text}). "
        "It was not run. Do not try to reach the same by another way."
    )


class Allowed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What somebody allowed for the rest of a session, when they approved one call."""

    number: int  # of the event that says so
    tool: str
    params: Mapping[str, Any]  # of the call that was approved
    redact: tuple[str, ...] = ()  # names of arguments that are not shown
    rule: str | None = None  # None: exactly that call again
    by: str = ""
    at: int = 0

    def covers(
        self, names: Collection[str], params: Mapping[str, Any], understood: Mapping[str, Any]
    ) -> bool:
        """Whether a call of a tool of these names may run without being asked about.

        A rule looks at the arguments as the tool understands them, `exactly` at those given.
        """
        if self.rule is not None:
            return rule_of(self.rule).covers(names, understood)
        return self.tool in names and digest(params) == digest(self.params)

    @property
    def shown(self) -> dict[str, Any]:
        """The arguments as people and programs see them."""
        return masked(self.params, self.redact)

    @property
    def text(self) -> str:
        """What is allowed, for people."""
        return self.rule or f"{self.tool} with {msgspec.json.encode(self.shown).decode()}"


def check_remembered(rule: str, tool: str, params: Mapping[str, Any]) -> None:
    """Raises Refused for a rule that is none, or is not about the call that is approved."""
    if not rule_of(rule).covers((tool,), params):
        raise Refused(
            f"the rule {rule!r} is not about this call to {tool}, so it cannot be remembered",
            code="PERMISSION_INVALID",
            hint=f"such as {tool}, or leave the rule out for exactly this call",
        )
