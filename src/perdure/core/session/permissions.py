"""Permissions of tool calls: an agent's rules by tool and argument, and remembered decisions.

A rule is `tool` or `tool:argument=value`, with `*`, `?` and `[…]` as in file names, such as
`shell:cmd=rm*`. Rules that deny are checked first, then those that ask, then those that allow.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from perdure.core.log.redaction import mask_arguments
from perdure.core.session.calls import params_digest
from perdure.errors import Refused

Effect = Literal["deny", "ask", "allow"]

NOT_TRACKED: Final = "Tool requires approval but task tracking not enabled, denying"
EFFECTS: Final[tuple[Effect, ...]] = ("deny", "ask", "allow")  # in the order of the checks
_RULE: Final = re.compile(r"([^:=\s]+)(?::(?:\*|([^:=\s]+)=(.*)))?", re.DOTALL)
_PATTERN: Final = re.compile(r"[*?\[]")
# Nothing but wildcards: it names no tool. Possessive, so that no text is matched in two ways.
_WILDCARDS: Final = re.compile(r"(?:[*?]|\[!?+\]?+[^\]]*+\])*+")


@dataclass(frozen=True, slots=True)
class PermissionRule:
    """Pattern of calls: those of some tools, or only those with a matching argument."""

    text: str
    tool: str
    argument: str | None = None
    value: str = "*"

    @property
    def is_single_tool(self) -> bool:
        """True if it names one tool without a wildcard."""
        return _PATTERN.search(self.tool) is None

    @property
    def is_every_tool(self) -> bool:
        """True if it matches every call of every tool, or of all whose names have some letters."""
        has_any_length = self.argument is None and "*" in self.tool
        return has_any_length and _WILDCARDS.fullmatch(self.tool) is not None

    def is_match(self, names: Collection[str], params: Mapping[str, Any]) -> bool:
        """Return True if it matches this call of a tool with these names."""
        if not any(fnmatchcase(name, self.tool) for name in names):
            return False
        if self.argument is None:
            return True
        if self.argument not in params:
            return False
        return fnmatchcase(_text(params[self.argument]), self.value)


def _text(value: Any) -> str:
    """Return a value as rules match it: text unchanged, anything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def parse_rule(text: str) -> PermissionRule:
    """Return the rule of a text. Raises Refused."""
    match = _RULE.fullmatch(text)
    if match is None:
        raise Refused(
            f"{text!r} is not a permission rule",
            code="PERMISSION_INVALID",
            hint="such as refund, shell:cmd=rm* or gh_*",
        )
    return PermissionRule(text, match[1], match[2], match[3] if match[2] else "*")


@dataclass(frozen=True, slots=True)
class PermissionRules:
    """The rules of one agent."""

    rules: Mapping[Effect, Sequence[PermissionRule]]

    def judge(
        self, names: Collection[str], params: Mapping[str, Any]
    ) -> tuple[Effect, PermissionRule] | None:
        """Return the effect of the first rule that matches a call, and that rule; None if none."""
        for effect in EFFECTS:
            for rule in self.rules.get(effect, ()):
                if rule.is_match(names, params):
                    return effect, rule
        return None

    def denying_rule(
        self, names: Collection[str], params: Mapping[str, Any]
    ) -> PermissionRule | None:
        """Return the rule that denies a call, if there is one."""
        judgment = self.judge(names, params)
        return judgment[1] if judgment is not None and judgment[0] == "deny" else None


def permission_denial_text(tool: str, rule: PermissionRule) -> str:
    """Return the result text, for the model, of a call that the rules deny."""
    return (
        f"Not allowed: the permissions of this agent deny this call to {tool} ({rule.text}). "
        "It was not run. Do not try to reach the same by another way."
    )


def remembered_denial_text(tool: str, permission: "RememberedPermission") -> str:
    """Return the result text, for the model, of a call like those that an approver denied."""
    calls = f" ({permission.rule})" if permission.rule else ""
    return (
        f"Not allowed: the user denied such calls to {tool} for the rest of this session{calls}. "
        "It was not run. Do not try to reach the same by another way."
    )


class RememberedPermission(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Permission or denial for the rest of a session, given together with one decision."""

    number: int  # seq of the decision event
    effect: Literal["allow", "deny"] = "allow"
    tool: str
    params: Mapping[str, Any]  # of the decided call
    redact: tuple[str, ...] = ()  # names of arguments that are not shown
    rule: str | None = None  # None: exactly that call again
    by: str = ""
    at: int = 0

    def is_match(
        self, names: Collection[str], params: Mapping[str, Any], validated: Mapping[str, Any]
    ) -> bool:
        """Return True if it is about this call of a tool with these names.

        A rule matches the `validated` arguments; without a rule, `params` must be identical.
        """
        if self.rule is not None:
            return parse_rule(self.rule).is_match(names, validated)
        return self.tool in names and params_digest(params) == params_digest(self.params)

    @property
    def redacted_params(self) -> dict[str, Any]:
        """The arguments with the secret ones masked."""
        return mask_arguments(self.params, self.redact)

    @property
    def text(self) -> str:
        """Description of its calls, for display."""
        return self.rule or f"{self.tool} with {msgspec.json.encode(self.redacted_params).decode()}"


def check_remembered_rule(
    text: str, tool: str, params: Mapping[str, Any], *, all_tools: bool
) -> None:
    """Raise Refused for an invalid rule, or one that does not match the decided call.

    A rule for every tool is refused without `all_tools`: it is rarely intended.
    """
    rule = parse_rule(text)
    if rule.is_every_tool and not all_tools:
        raise Refused(
            f"the rule {text!r} covers every call of every tool of this session",
            code="RULE_COVERS_EVERY_TOOL",
            hint=f"name a tool, such as {tool}; or confirm it: --yes, all_tools=True in Python, "
            "or allTools over HTTP",
        )
    if not rule.is_match((tool,), params):
        raise Refused(
            f"the rule {text!r} is not about this call to {tool}, so it cannot be remembered",
            code="PERMISSION_INVALID",
            hint=f"such as {tool}, or leave the rule out for exactly this call",
        )
