"""Conversion of what an MCP server sends: its listed tools, and the results of calls."""

import base64
import binascii
from collections.abc import Iterator
from typing import Any

import msgspec
from mcp import types

from perdure.core.text import NO_OUTPUT
from perdure.errors import Refused, ToolError
from perdure.runtime.mcp.servers import ListedTool
from perdure.runtime.tools.outputs import Rendered
from perdure.views.values import File


def to_listed_tool(tool: types.Tool) -> ListedTool:
    """Return a tool of a server's list."""
    hints = tool.annotations or types.ToolAnnotations()
    destroys = True if hints.destructive_hint is None else hints.destructive_hint
    return ListedTool(
        tool.name,
        tool.description or tool.title or hints.title or "",
        tool.input_schema,
        only_reads=bool(hints.read_only_hint),
        may_destroy=destroys,
        may_repeat=bool(hints.idempotent_hint),
    )


def tool_output(result: types.CallToolResult) -> Rendered:
    """Return the result of a tool as the model sees it. Raises ToolError if the tool failed.

    Structured content repeats the other content; it is used only if there is no other.
    """
    parts = tuple(part for block in result.content for part in _parts(block))
    if not parts and result.structured_content is not None:
        parts = (msgspec.json.encode(result.structured_content).decode(),)
    if result.is_error:
        texts = [part if isinstance(part, str) else _mark(part) for part in parts]
        raise ToolError("\n".join(texts) or "the tool failed without an error message")
    if any(isinstance(part, File) for part in parts):
        return parts
    return "\n".join(str(part) for part in parts) or NO_OUTPUT


def _parts(block: types.ContentBlock) -> Iterator[str | File]:
    match block:
        case types.TextContent():
            yield block.text
        case types.ImageContent() | types.AudioContent():
            yield _file(block.mime_type, block.data, None)
        case types.ResourceLink():
            description = f": {block.description}" if block.description else ""
            kind = f" ({block.mime_type})" if block.mime_type else ""
            yield f"[resource {block.title or block.name} {block.uri}{kind}{description}]"
        case types.EmbeddedResource():
            yield _embedded(block.resource)


def _embedded(resource: Any) -> str | File:
    if isinstance(resource, types.TextResourceContents):
        return resource.text
    return _file(resource.mime_type or "application/octet-stream", resource.blob, resource.uri)


def _file(media_type: str, data: str, name: str | None) -> str | File:
    try:
        content = base64.b64decode(data, validate=True)
        return File(media_type, data=content, name=None if name is None else _last_of(name))
    except (binascii.Error, Refused):
        return f"[{media_type} that cannot be read]"


def _last_of(uri: str) -> str:
    return uri.rstrip("/").rpartition("/")[2] or uri


def _mark(file: File) -> str:
    return f"[file {file.media_type}]"
