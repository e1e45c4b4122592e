"""MCP server built with the official library: `python -m tests.runtime.mcp.provider [PORT]`.

Its tools record their effects in the folder that WORLD names. A tool that `hold` names in that
folder waits until the test releases it.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
from mcp import types
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

WORLD = Path(os.environ["WORLD"])
READS = types.ToolAnnotations(read_only_hint=True)
REPEATS = types.ToolAnnotations(idempotent_hint=True, destructive_hint=False)
ADDS = types.ToolAnnotations(destructive_hint=False)

server = MCPServer("provider", log_level="CRITICAL")


async def done(tool: str, ctx: Context[Any, Any]) -> None:
    """Record the effect of a tool; wait if the test asks for that."""
    meta = dict(ctx.request_context.meta or {})
    line = {"tool": tool, "effect": meta.get("perdure/effectID"), "pid": os.getpid()}
    if "traceparent" in meta:
        line["traceparent"] = meta["traceparent"]
    with (WORLD / "done").open("a") as file:
        file.write(json.dumps(line) + "\n")
    hold = WORLD / f"hold-{tool}"
    if not hold.exists():
        return
    try:
        await anyio.to_thread.run_sync(hold.read_text, abandon_on_cancel=True)
    except anyio.get_cancelled_exc_class():
        (WORLD / f"cancelled-{tool}").touch()
        raise


@server.tool(annotations=READS)
async def look(what: str, ctx: Context[Any, Any]) -> str:
    """Look at something."""
    await done("look", ctx)
    return f"seen {what}"


@server.tool()
async def charge(cents: int, ctx: Context[Any, Any]) -> str:
    """Charge somebody."""
    await done("charge", ctx)
    return f"charged {cents}"


@server.tool(annotations=ADDS)
async def note(text: str, ctx: Context[Any, Any]) -> str:
    """Add a note."""
    await done("note", ctx)
    return f"noted {text}"


@server.tool(annotations=REPEATS)
async def put(text: str, ctx: Context[Any, Any]) -> str:
    """Put a text in its place."""
    await done("put", ctx)
    return f"put {text}"


@server.tool(annotations=READS)
async def step(ctx: Context[Any, Any]) -> str:
    """Do it in steps."""
    await ctx.report_progress(1, 4, "begun")
    await ctx.report_progress(2, 4, "halfway")
    return "stepped"


@server.tool(annotations=READS, structured_output=False)
def mixed() -> list[types.ContentBlock]:
    """Return everything that can be returned."""
    link = types.ResourceLink(type="resource_link", name="report", uri="file:///r.pdf")
    inside = types.TextResourceContents(uri="file:///n.txt", text="inside")
    return [
        types.TextContent(type="text", text="a picture:"),
        types.ImageContent(type="image", data="iVBORw0KGgo=", mime_type="image/png"),
        link,
        types.EmbeddedResource(type="resource", resource=inside),
    ]


@server.tool(annotations=READS)
def fail() -> str:
    """Fail."""
    raise ToolError("there is no such thing")


@server.tool("dotted.name", annotations=READS, structured_output=True)
def dotted() -> dict[str, int]:
    """Has a name that model providers refuse."""
    return {"answer": 42}


def main() -> None:
    """Serve on standard input and output, or on a port."""
    for name in json.loads(os.environ.get("WITHOUT", "[]")):
        server.remove_tool(name)
    with (WORLD / "pids").open("a") as file:
        file.write(f"{os.getpid()}\n")
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")


if __name__ == "__main__":
    main()
