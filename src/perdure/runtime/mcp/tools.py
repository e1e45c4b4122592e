"""Tools of an agent, built from the tools that an MCP server lists."""

import hashlib
import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from perdure.errors import ConfigError
from perdure.runtime.mcp.pool import ServerPool
from perdure.runtime.mcp.servers import ListedTool, MCPTools, ToolChoice
from perdure.runtime.tools.outputs import Rendered
from perdure.runtime.tools.tool import Tool
from perdure.runtime.values import Context

logger = logging.getLogger("perdure")

_FORBIDDEN: Final = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME: Final = 64  # characters that every model provider accepts


def build_tools(
    chosen: MCPTools, listed: Sequence[ListedTool], servers: ServerPool
) -> list[Tool[..., Any]]:
    """Return the chosen tools of a server's list; those that cannot be tools are left out."""
    names = {tool.name for tool in listed}
    gated, missing = _named(chosen.requires_approval), _all_named(chosen) - names
    if missing:
        logger.warning(
            "MCP server %r has no tool %s", chosen.server_name, ", ".join(sorted(missing))
        )
    tools = []
    for tool in listed:
        if chosen.only is not None and tool.name not in chosen.only:
            continue
        try:
            tools.append(_tool(chosen, tool, servers, is_doubtful=not gated <= names))
        except ConfigError as error:
            logger.warning("MCP server %r: %s", chosen.server_name, error.message)
    return tools


def safe_name(name: str) -> str:
    """Return a name that every model provider accepts; always the same for the same name."""
    plain = _FORBIDDEN.sub("_", name)
    if len(plain) <= _MAX_NAME:
        return plain
    return f"{plain[: _MAX_NAME - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _named(choice: ToolChoice) -> set[str]:
    return set() if choice is None or isinstance(choice, bool) else set(choice)


def _all_named(chosen: MCPTools) -> set[str]:
    """Return all names in a choice; one that the server does not list is removed or misspelled."""
    return _named(chosen.only) | _named(chosen.requires_approval) | _named(chosen.idempotent)


def _tool(
    chosen: MCPTools, listed: ListedTool, servers: ServerPool, *, is_doubtful: bool
) -> Tool[..., Any]:
    may_repeat = _is_chosen(
        chosen.idempotent, listed, default=listed.only_reads or listed.may_repeat
    )
    return Tool(
        partial(_call, servers, chosen.server_name, listed, may_repeat),
        safe_name(chosen.prefix + listed.name),
        listed.description,
        listed.schema,
        requires_approval=replace(
            chosen.approval, when=_is_approval_required(chosen, listed, is_doubtful=is_doubtful)
        ),
        timeout=chosen.timeout,
        idempotent=may_repeat,
        on_crash=chosen.on_crash,
    )


def _is_approval_required(chosen: MCPTools, listed: ListedTool, *, is_doubtful: bool) -> bool:
    """Return True if the tool requires approval; also if a misspelled name may mean this tool."""
    if is_doubtful:
        return True
    by_hint = listed.may_destroy and not listed.only_reads
    return _is_chosen(chosen.requires_approval, listed, default=by_hint)


def _is_chosen(choice: ToolChoice, tool: ListedTool, *, default: bool) -> bool:
    if choice is None:
        return default
    return choice if isinstance(choice, bool) else tool.name in choice


async def _call(
    servers: ServerPool, server: str, tool: ListedTool, may_repeat: bool, ctx: Context[Any]
) -> Rendered:
    return await servers.connections(server).call(tool, ctx, may_repeat=may_repeat)
