"""From a server's list to tools that an agent can have."""

import hashlib
import logging
import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from perdure.errors import ConfigError
from perdure.runtime.mcp.pool import ServerPool
from perdure.runtime.mcp.servers import Chosen, Listed, MCPTools
from perdure.runtime.tools.outputs import Rendered
from perdure.runtime.tools.tool import Tool
from perdure.runtime.values import Context

logger = logging.getLogger("perdure")

_STRANGE: Final = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST: Final = 64  # of a name, for every model provider


def tools_of(chosen: MCPTools, listed: Sequence[Listed], lines: ServerPool) -> list[Tool[..., Any]]:
    """The chosen ones of the tools that a server lists; one that cannot be a tool is left out."""
    known = {one.name for one in listed}
    asked, missing = _named(chosen.requires_approval), _all_named(chosen) - known
    if missing:
        logger.warning(
            "MCP server %r has no tool %s", chosen.server_name, ", ".join(sorted(missing))
        )
    found = []
    for one in listed:
        if chosen.only is not None and one.name not in chosen.only:
            continue
        try:
            found.append(_tool(chosen, one, lines, is_doubtful=not asked <= known))
        except ConfigError as error:
            logger.warning("MCP server %r: %s", chosen.server_name, error.message)
    return found


def safe_name(name: str) -> str:
    """A name that every model provider takes; the same for the same name, always."""
    plain = _STRANGE.sub("_", name)
    if len(plain) <= _LONGEST:
        return plain
    return f"{plain[: _LONGEST - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _named(said: Chosen) -> set[str]:
    return set() if said is None or isinstance(said, bool) else set(said)


def _all_named(chosen: MCPTools) -> set[str]:
    """Names that the server should have; if it does not, it changed, or we mistyped."""
    return _named(chosen.only) | _named(chosen.requires_approval) | _named(chosen.idempotent)


def _tool(chosen: MCPTools, one: Listed, lines: ServerPool, *, is_doubtful: bool) -> Tool[..., Any]:
    may_repeat = _said(chosen.idempotent, one, otherwise=one.only_reads or one.may_repeat)
    return Tool(
        partial(_call, lines, chosen.server_name, one, may_repeat),
        safe_name(chosen.prefix + one.name),
        one.description,
        one.schema,
        requires_approval=_asks(chosen, one, is_doubtful=is_doubtful),
        approval_timeout=chosen.approval_timeout,
        timeout=chosen.timeout,
        idempotent=may_repeat,
        on_crash=chosen.on_crash,
    )


def _asks(chosen: MCPTools, one: Listed, *, is_doubtful: bool) -> bool:
    """Whether a person is asked first. A list with a mistake in it might have meant this tool."""
    if is_doubtful:
        return True
    by_hint = one.may_destroy and not one.only_reads
    return _said(chosen.requires_approval, one, otherwise=by_hint)


def _said(what: Chosen, one: Listed, *, otherwise: bool) -> bool:
    if what is None:
        return otherwise
    return what if isinstance(what, bool) else one.name in what


async def _call(
    lines: ServerPool, server: str, one: Listed, may_repeat: bool, ctx: Context[Any]
) -> Rendered:
    return await lines.line(server).call(one, ctx, may_repeat=may_repeat)
