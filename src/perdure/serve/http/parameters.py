"""Types and headers that several routes share: ids, names, waits."""

from typing import Annotated, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from perdure.serve.http.dependencies import KEY_HEADER
from perdure.serve.http.sse import MEDIA_TYPE
from perdure.serve.http.table import Header
from perdure.views.bodies import MAX_WAIT_S, IdText, Wait

Name = Annotated[str, Meta(max_length=200)]
MAX_POSITION: Final = 2**53  # the largest integer that every JSON client represents exactly

KEY: Final = Header(KEY_HEADER, "The message key: a message with the same key is recorded once.")
ACCEPT: Final = Header("Accept", f"{MEDIA_TYPE} for a stream; anything else for JSON.")
LAST_EVENT_ID: Final = Header(
    "Last-Event-ID",
    "The id of the last event received; it takes precedence over `after`.",
    r"^(\d{1,16}(\.\d)?)?$",
)
After = (
    Annotated[int, Meta(ge=0, le=MAX_POSITION, description="Only events after this seq or pos.")]
    | UnsetType
)


class ByQuery(Struct, frozen=True, kw_only=True):
    """The person for whom the caller acts."""

    by: IdText | UnsetType = UNSET


def wait_seconds(wait: Wait) -> float:
    """Return how long the caller waits; 0 if not at all."""
    if wait is None or isinstance(wait, bool):
        return MAX_WAIT_S if wait else 0.0
    return wait
