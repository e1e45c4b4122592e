"""Results of tool calls on the wire: each of `content` and `structuredContent` is sufficient."""

from typing import Any, Final

import msgspec
from mcp.shared.exceptions import MCPError

from perdure.serve.mcp.toolbox import Json, ToolAnswer, error_fields

COMPLETE: Final = "complete"
SERVER_ERROR: Final = -32000  # the first of the codes that are the server's own


def call_result(answer: ToolAnswer, *, has_links: bool = False) -> Json:
    """Return the result of a tool call: the fields as a value, the same as text, perhaps links."""
    text = msgspec.json.encode(answer.fields).decode()
    content: list[Json] = [{"type": "text", "text": text}]
    content += [
        {"type": "resource_link", "uri": link.uri, "name": link.name, "mimeType": link.media_type}
        for link in (answer.links if has_links else ())
    ]
    return {
        "resultType": COMPLETE,
        "content": content,
        "structuredContent": answer.fields,
        "isError": answer.is_error,
    }


def protocol_error(code: int, error: Exception) -> MCPError:
    """Return a JSON-RPC error that also has the code and details of an error of ours."""
    fields = error_fields(error)
    data: dict[str, Any] = {"code": fields["code"], **fields["details"]}
    return MCPError(code=code, message=fields["message"], data=data)
