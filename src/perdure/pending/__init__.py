"""The documented API for pending tool calls: records, a registry of async tools, a resumer.

Its classes work on the sessions of an open Runtime:

    calls, resumer = PendingToolCall(rt), SessionResumer(rt)
    registry = AsyncToolRegistry(rt)
    started = await registry.execute("deploy-preview", {"branch": "main"})
    await resumer.submit_result(started["pendingID"], {"output": "up"})

Records are dicts, with the names of the wire format.
"""

from perdure.pending.records import PendingToolCall
from perdure.pending.resumer import SessionResumer, recover_pending_sessions
from perdure.pending.tools import AsyncTool, AsyncToolRegistry

__all__ = [
    "AsyncTool",
    "AsyncToolRegistry",
    "PendingToolCall",
    "SessionResumer",
    "recover_pending_sessions",
]
