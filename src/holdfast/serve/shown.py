"""Sessions and events as the API's description says them."""

from typing import Any, Final

from holdfast.serve.answers import Schema, listing, shape

_TEXT: Final[Schema] = {"type": "string"}
_MAYBE: Final[Schema] = {"type": ["string", "null"]}
_NUMBER: Final[Schema] = {"type": "integer"}
_OBJECT: Final[Schema] = {"type": "object"}
_MAYBE_OBJECT: Final[Schema] = {"type": ["object", "null"]}
_LIST: Final[Schema] = {"type": "array"}
_STATES: Final = ("pending", "running", "waiting", "completed", "failed", "cancelled")
_SESSION: Final[dict[str, Any]] = {
    "sessionID": _TEXT,
    "tenant": _TEXT,
    "agent": _TEXT,
    "queue": _TEXT,
    "taskID": _MAYBE,
    "state": {"enum": list(_STATES)},
    "status": shape(("type",), type={"enum": ["idle", "busy", "retry", "waiting_async"]}),
    "output": {},
    "stop": {"enum": ["max_tokens", "context_window", "refusal", "pause_turn", None]},
    "error": _MAYBE_OBJECT,
    "problem": _MAYBE_OBJECT,
    "driver": _MAYBE_OBJECT,
    "nextAt": {"type": ["integer", "null"]},
    "compaction": _MAYBE_OBJECT,
    "pending": {"type": "array", "items": _OBJECT},
    "todos": _LIST,
    "usage": {"type": "object", "additionalProperties": {"type": "number"}},
    "metadata": _OBJECT,
    "seq": _NUMBER,
    "createdAt": _NUMBER,
    "updatedAt": _NUMBER,
    "parent": _MAYBE,
}

SESSION: Final = shape(_SESSION, **_SESSION, treeUsage=_SESSION["usage"])
SESSIONS: Final = listing("sessions", SESSION)
MESSAGES: Final = shape(("messages",), messages={"type": "array", "items": _OBJECT})
DELETED: Final = shape(("sessionID", "deleted"), sessionID=_TEXT, deleted={"type": "boolean"})
EVENT: Final = shape(
    ("seq", "type", "timestamp", "data"),
    seq=_NUMBER,
    type=_TEXT,
    timestamp=_NUMBER,
    data=_OBJECT,
    pos=_NUMBER,
    sessionID=_TEXT,
    tenant=_TEXT,
)
EVENTS: Final = listing("events", EVENT)
