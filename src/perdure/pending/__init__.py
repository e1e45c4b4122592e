"""Pending tool calls by their first names: records, a registry of asynchronous tools, resuming.

Doors onto the same sessions, store and engine as everything else, with a Runtime that is open:

    calls, resumer = PendingToolCall(rt), SessionResumer(rt)
    registry = AsyncToolRegistry(rt)
    started = await registry.execute("deploy-preview", {"branch": "main"})
    await resumer.submit_result(started["pendingID"], {"output": "up"})

Records are dicts, spelled as on the wire.
"""

from perdure.pending.records import PendingToolCall
from perdure.pending.resuming import SessionResumer, recover_pending_sessions
from perdure.pending.tools import AsyncTool, AsyncToolRegistry

__all__ = [
    "AsyncTool",
    "AsyncToolRegistry",
    "PendingToolCall",
    "SessionResumer",
    "recover_pending_sessions",
]
