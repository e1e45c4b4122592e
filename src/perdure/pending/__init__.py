"""API of the specification; new programs use Runtime.

Pending tool calls: records, a registry of async tools, a resumer.

Its classes work on the sessions of an open Runtime:

    calls, resumer = PendingToolCall(rt), SessionResumer(rt)
    registry = AsyncToolRegistry(rt)
    started = await registry.execute("deploy-preview", {"branch": "main"})
    await resumer.submit_result(started["pendingID"], {"output": "up"})

Records are dicts, with the names of the wire format.
"""

from perdure.pending.records import PendingToolCall
from perdure.pending.resumer import (
    SessionResumer,
    check_expired_calls,
    recover_pending_sessions,
)
from perdure.pending.tools import AsyncTool, AsyncToolRegistry
from perdure.runtime.tools.tool import DEFERRED_TIMEOUT_MS as DEFAULT_ASYNC_TIMEOUT

__all__ = [
    "DEFAULT_ASYNC_TIMEOUT",
    "AsyncTool",
    "AsyncToolRegistry",
    "PendingToolCall",
    "SessionResumer",
    "check_expired_calls",
    "recover_pending_sessions",
]
