"""Types and JSON schemas that several routes share: ids, waits, sessions, calls, events."""

from typing import Annotated, Any, Final, get_args

from msgspec import Meta

from perdure.core.literals import DecisionKind, RunState
from perdure.core.pending.record import PendingRecord
from perdure.core.session.naming import MAX_ID
from perdure.runtime.views import PRIVATE
from perdure.serve.http.responses import Schema, json_schema, object_schema, page_schema

TEXT: Final[Schema] = {"type": "string"}
NULLABLE_TEXT: Final[Schema] = {"type": ["string", "null"]}
BOOLEAN: Final[Schema] = {"type": "boolean"}
INTEGER: Final[Schema] = {"type": "integer"}
OBJECT: Final[Schema] = {"type": "object"}
NULLABLE_OBJECT: Final[Schema] = {"type": ["object", "null"]}

# The ids and actors that `core.session.naming.check_id` accepts.
ID_PATTERN: Final = "^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$"
IdText = Annotated[str, Meta(min_length=1, max_length=MAX_ID, pattern=ID_PATTERN)]
By = IdText

MAX_WAIT_S: Final = 60.0
# How long the caller waits until the session is parked: in seconds, or true for the maximum.
Wait = bool | Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] | None


def wait_seconds(wait: Wait) -> float:
    """Return how long the caller waits; 0 if not at all."""
    if wait is None or isinstance(wait, bool):
        return MAX_WAIT_S if wait else 0.0
    return wait


def _pending() -> Schema:
    """Return the schema of a record without private fields, with the fields always present."""
    record = json_schema(PendingRecord)
    properties: dict[str, Any] = {
        name: {key: value for key, value in schema.items() if key != "default"}
        for name, schema in record["properties"].items()
        if name not in PRIVATE
    }
    properties |= {
        "allowedDecisions": {"type": "array", "items": {"enum": list(get_args(DecisionKind))}},
        "approvers": {"type": "array", "items": TEXT},
        "notByStarter": BOOLEAN,
        "minApprovals": INTEGER,
        "missingApprovals": INTEGER,
    }
    properties |= {"callbackURL": NULLABLE_TEXT, "webhookURL": NULLABLE_TEXT, "blocking": BOOLEAN}
    properties["request"] = OBJECT  # of approvals and questions
    return object_schema([*record["required"], "status", "tenant", "callbackURL"], **properties)


PENDING: Final = _pending()
ACCEPTED: Final = object_schema(
    ("success", "sessionID"), success=BOOLEAN, sessionID=TEXT, duplicate=BOOLEAN, session=OBJECT
)
DECIDED: Final[Schema] = {
    **PENDING,
    "properties": {
        **PENDING["properties"],
        "success": BOOLEAN,
        "duplicate": BOOLEAN,
        "session": OBJECT,
    },
}

_SESSION: Final[dict[str, Any]] = {
    "sessionID": TEXT,
    "tenant": TEXT,
    "agent": TEXT,
    "queue": TEXT,
    "taskID": NULLABLE_TEXT,
    "state": {"enum": list(get_args(RunState))},
    "status": object_schema(("type",), type={"enum": ["idle", "busy", "retry", "waiting_async"]}),
    "output": {},
    "stop": {"enum": ["max_tokens", "context_window", "refusal", "pause_turn", None]},
    "error": NULLABLE_OBJECT,
    "problem": NULLABLE_OBJECT,
    "driver": NULLABLE_OBJECT,
    "nextAt": {"type": ["integer", "null"]},
    "compaction": NULLABLE_OBJECT,
    "pending": {"type": "array", "items": OBJECT},
    "todos": {"type": "array"},
    "usage": {"type": "object", "additionalProperties": {"type": "number"}},
    "metadata": OBJECT,
    "seq": INTEGER,
    "createdAt": INTEGER,
    "updatedAt": INTEGER,
    "parent": NULLABLE_TEXT,
}

_CHILDREN: Final[dict[str, Any]] = {"type": "array", "items": OBJECT}
SESSION: Final = object_schema(
    _SESSION, **_SESSION, treeUsage=_SESSION["usage"], children=_CHILDREN, why=OBJECT
)
SENT: Final = object_schema(
    (*_SESSION, "decided"),
    **_SESSION,
    treeUsage=_SESSION["usage"],
    children=_CHILDREN,
    decided=BOOLEAN,
    pendingID=TEXT,
    duplicate=BOOLEAN,
)
_WAITING: Final = object_schema(("pendingID", "kind", "tool"), pendingID=TEXT, kind=TEXT, tool=TEXT)
_SUMMARY: Final[dict[str, Any]] = {
    **{name: _SESSION[name] for name in ("sessionID", "tenant", "agent", "queue", "taskID")},
    **{name: _SESSION[name] for name in ("state", "problem", "metadata", "parent", "usage")},
    **{name: _SESSION[name] for name in ("seq", "createdAt", "updatedAt")},
    "title": TEXT,
    "turns": INTEGER,
    "waitingFor": {"type": "array", "items": _WAITING},
}
_COUNT: Final[dict[str, Any]] = {"count": {"type": ["integer", "null"]}}
_SUMMARIES: Final = page_schema("sessions", object_schema(_SUMMARY, **_SUMMARY))
SESSIONS: Final[dict[str, Any]] = {
    "anyOf": [
        page_schema("sessions", SESSION),
        {**_SUMMARIES, "properties": {**_SUMMARIES["properties"], **_COUNT}},
    ]
}
MESSAGES: Final = object_schema(("messages",), messages={"type": "array", "items": OBJECT})
DELETED: Final = object_schema(
    ("sessionID", "deleted", "state"), sessionID=TEXT, deleted=BOOLEAN, state=_SESSION["state"]
)
EVENT: Final = object_schema(
    ("seq", "type", "timestamp", "data"),
    seq=INTEGER,
    type=TEXT,
    timestamp=INTEGER,
    data=OBJECT,
    pos=INTEGER,
    sessionID=TEXT,
    tenant=TEXT,
)
_EVENTS: Final = page_schema("events", EVENT)
EVENTS: Final[Schema] = {
    **_EVENTS,
    "properties": {**_EVENTS["properties"], "previous": NULLABLE_TEXT},
}
