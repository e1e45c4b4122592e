"""The permission rules of an agent, checked against the tools that it has."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from perdure.core.session.permissions import EFFECTS, Permissions, Rule, rule_of
from perdure.errors import ConfigError, Refused
from perdure.runtime.tools.tool import Tool


class Ruled(Protocol):
    """An agent, as far as rules go."""

    @property
    def name(self) -> str: ...
    @property
    def permissions(self) -> Mapping[str, Sequence[str]]: ...


def permissions_of(
    agent: Ruled, tool: Callable[[str], Tool[..., Any] | None], *, is_open: bool = False
) -> Permissions:
    """The rules of an agent. ConfigError for one that could never be about a call of its tools.

    A rule with a typing mistake would deny nothing, and nobody would see it. An agent whose tools
    are listed elsewhere may yet get the tool that a rule names.
    """
    unknown = set(agent.permissions) - set(EFFECTS)
    if unknown:
        raise _wrong(agent, "", f"has {min(unknown)!r}, and takes deny, allow and ask")
    rules = {
        effect: [
            _checked(agent, effect, text, tool, is_open=is_open)
            for text in agent.permissions.get(effect, ())
        ]
        for effect in EFFECTS
    }
    return Permissions(rules)


def _checked(
    agent: Ruled,
    effect: str,
    text: str,
    tool: Callable[[str], Tool[..., Any] | None],
    *,
    is_open: bool,
) -> Rule:
    try:
        rule = rule_of(text)
    except Refused as error:
        raise _wrong(agent, f".{effect}", error.message, error.hint) from error
    if not rule.names_one_tool:
        return rule
    found = tool(rule.tool)
    if found is None and is_open:
        return rule
    if found is None:
        raise _wrong(agent, f".{effect}", f"{text!r} is about a tool that the agent does not have")
    known = found.parameters.get("properties", {})
    if rule.argument is not None and known and rule.argument not in known:
        raise _wrong(agent, f".{effect}", f"{text!r}: {rule.tool} has no {rule.argument!r}")
    return rule


def _wrong(agent: Ruled, where: str, text: str, hint: str | None = None) -> ConfigError:
    return ConfigError(
        f"agent {agent.name!r}: permissions{where}: {text}",
        code="PERMISSION_INVALID",
        hint=hint or "rules are tool, or tool:argument=value, such as shell:cmd=rm*",
    )
