"""A context made by hand, to call a tool alone."""

from typing import Any

from perdure.runtime.values import Context


def make_context(**fields: Any) -> Context[Any]:
    """The Context that a tool gets, with these fields and harmless ones for the rest."""
    given: dict[str, Any] = {
        "deps": None,
        "session_id": "s_test",
        "agent": "test",
        "call_id": "call_test",
        "effect_id": "e_test",
    }
    return Context(**{**given, **fields})
