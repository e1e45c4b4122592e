"""JSON shapes in which sessions and calls reach the commands."""

from collections.abc import Mapping
from typing import Any

from perdure.views.events import Delta, Event
from perdure.views.sessions import Result

Json = dict[str, Any]
Options = Mapping[str, Any]  # the options of a command


def item_json(item: Event | Delta | Result) -> Json:
    """Return an item of a stream: an event, a delta, or last the session."""
    return {"type": "delta", "data": item.to_json()} if isinstance(item, Delta) else item.to_json()
