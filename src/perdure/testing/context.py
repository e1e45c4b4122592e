"""Context for calling a tool without a runtime."""

from typing import Any

from perdure.runtime.values import Context


def make_context(**fields: Any) -> Context[Any]:
    """Return the Context that a tool gets, with these fields and defaults for the others."""
    defaults: dict[str, Any] = {
        "deps": None,
        "session_id": "s_test",
        "agent": "test",
        "call_id": "call_test",
        "effect_id": "e_test",
    }
    return Context(**{**defaults, **fields})
