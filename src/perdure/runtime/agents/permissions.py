"""The permission rules of an agent, checked against the tools that it has."""

from collections.abc import Callable
from typing import Any

from perdure.core.session.permissions import EFFECTS, PermissionRule, PermissionRules, parse_rule
from perdure.errors import ConfigError, Refused
from perdure.runtime.agents.agent import Agent
from perdure.runtime.tools.tool import Tool


def build_permissions(
    agent: Agent[Any], tool: Callable[[str], Tool[..., Any] | None], *, is_open: bool = False
) -> PermissionRules:
    """Return the rules of an agent. Raises ConfigError for one that can never match a call.

    A rule with a typo would silently deny nothing. With `is_open`, MCP servers may still add the
    tool that a rule names.
    """
    rules = {
        effect: [
            _parse_rule(agent, (effect, number), text, tool, is_open=is_open)
            for number, text in enumerate(agent.permissions.get(effect, ()))
        ]
        for effect in EFFECTS
    }
    return PermissionRules(rules)


def _parse_rule(
    agent: Agent[Any],
    key: tuple[str, int],
    text: str,
    tool: Callable[[str], Tool[..., Any] | None],
    *,
    is_open: bool,
) -> PermissionRule:
    try:
        rule = parse_rule(text)
    except Refused as error:
        raise _wrong(agent, key, error.message, error.hint) from error
    if not rule.is_single_tool:
        return rule
    named_tool = tool(rule.tool)
    if named_tool is None and is_open:
        return rule
    if named_tool is None:
        raise _wrong(agent, key, f"{text!r} is about a tool that the agent does not have")
    arguments = named_tool.parameters.get("properties", {})
    if rule.argument is not None and arguments and rule.argument not in arguments:
        raise _wrong(agent, key, f"{text!r}: {rule.tool} has no {rule.argument!r}")
    return rule


def _wrong(
    agent: Agent[Any], key: tuple[str | int, ...], text: str, hint: str | None = None
) -> ConfigError:
    where = "".join(f".{effect}" for effect in key[:1])
    return ConfigError(
        f"agent {agent.name!r}: permissions{where}: {text}",
        code="PERMISSION_INVALID",
        hint=hint or "rules are tool, or tool:argument=value, such as shell:cmd=rm*",
        details={"path": ["agents", agent.name, "permissions", *key], "problem": text},
    )
