"""Sessions and events as the API's description says them."""

from typing import Annotated, Any, Final

from msgspec import Meta

from perdure.core.pending.record import PendingRecord
from perdure.core.session.naming import MAX_ID
from perdure.runtime.views import PRIVATE
from perdure.serve.http.responses import Schema, listing, schema_of, shape

TEXT: Final[Schema] = {"type": "string"}
TEXT_OR_NOT: Final[Schema] = {"type": ["string", "null"]}
FLAG: Final[Schema] = {"type": "boolean"}
OBJECT: Final[Schema] = {"type": "object"}

# An id, as `core.index.check_id` takes it; and who does something.
ID_PATTERN: Final = "^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$"
IdText = Annotated[str, Meta(min_length=1, max_length=MAX_ID, pattern=ID_PATTERN)]
By = IdText


def _pending() -> Schema:
    """The record as it is kept, without what is ours, with what is always shown."""
    kept = schema_of(PendingRecord)
    properties: dict[str, Any] = {
        name: {key: value for key, value in one.items() if key != "default"}
        for name, one in kept["properties"].items()
        if name not in PRIVATE
    }
    properties |= {"callbackURL": TEXT_OR_NOT, "webhookURL": TEXT_OR_NOT, "blocking": FLAG}
    return shape([*kept["required"], "status", "tenant", "callbackURL"], **properties)


PENDING: Final = _pending()
ACCEPTED: Final = shape(
    ("success", "sessionID"), success=FLAG, sessionID=TEXT, duplicate=FLAG, session=OBJECT
)
DECIDED: Final[Schema] = {
    **PENDING,
    "properties": {
        **PENDING["properties"],
        "success": FLAG,
        "duplicate": FLAG,
        "session": OBJECT,
    },
}


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
