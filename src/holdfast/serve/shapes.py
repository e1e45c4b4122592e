"""The JSON shapes that several routes answer, as the API's description says them."""

from typing import Annotated, Any, Final

from msgspec import Meta

from holdfast.core.pending.record import PendingRecord
from holdfast.core.session.naming import MAX_ID
from holdfast.runtime.results import PRIVATE
from holdfast.serve.answers import Schema, schema_of, shape

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
