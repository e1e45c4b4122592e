"""Lines of a session's log in the documented format."""

from typing import Any

_DOCUMENTED = """
{"type":"user","timestamp":1701234567890,"data":{"role":"user","content":"Hello"}}
{"type":"assistant","timestamp":1701234568123,"data":{"role":"assistant","content":"Hi!",
"agent":"default"}}
{"type":"tool_call","timestamp":1701234568456,"data":{"id":"call_123","tool":"Read",
"params":{"path":"file.txt"},"agent":"default"}}
{"type":"tool_result","timestamp":1701234568789,"data":{"toolCallId":"call_123",
"result":{"content":"file contents"}}}
"""
LINES = tuple(_DOCUMENTED.replace(",\n", ",").strip().split("\n"))


def event(kind: str, at: int = 1, /, **data: Any) -> dict[str, Any]:
    return {"type": kind, "timestamp": at, "data": data}


def user(content: Any) -> dict[str, Any]:
    return event("user", role="user", content=content)


def assistant(content: Any, agent: str = "default") -> dict[str, Any]:
    return event("assistant", role="assistant", content=content, agent=agent)


def call(call_id: str, tool: str = "Read", agent: str = "default", **params: Any) -> dict[str, Any]:
    return event("tool_call", id=call_id, tool=tool, params=params, agent=agent)


def result(call_id: str, told: Any = "ok") -> dict[str, Any]:
    return event("tool_result", toolCallId=call_id, result=told)
