"""What users and backends test with: a scripted model, a clock, crashes on purpose.

`survives` plays a story with a crash after each of its commits; `perdure.testing.contract` is
the suite for a store of your own, `perdure.testing.provider_rules` what model providers refuse.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.runtime.models.scripted import ScriptedModel
    from perdure.testing.clock import ManualClock
    from perdure.testing.context import make_context
    from perdure.testing.crash import Crashed, crash_after
    from perdure.testing.survive import Survived, survives

_HOMES = {
    "Crashed": "perdure.testing.crash",
    "ManualClock": "perdure.testing.clock",
    "ScriptedModel": "perdure.runtime.models.scripted",
    "Survived": "perdure.testing.survive",
    "crash_after": "perdure.testing.crash",
    "make_context": "perdure.testing.context",
    "survives": "perdure.testing.survive",
}

__all__ = [
    "Crashed",
    "ManualClock",
    "ScriptedModel",
    "Survived",
    "crash_after",
    "make_context",
    "survives",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: the contract suite needs none of them."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'perdure.testing' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
