"""What users and backends test with: a scripted model, a clock, crashes on purpose.

`survives` plays a story with a crash after each of its commits; `holdfast.testing.contract` is
the suite for a store of your own, `holdfast.testing.provider_rules` what model providers refuse.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.runtime.models.scripted import ScriptedModel
    from holdfast.testing.clock import ManualClock
    from holdfast.testing.context import make_context
    from holdfast.testing.crash import Crashed, crash_after
    from holdfast.testing.survive import Survived, survives

_HOMES = {
    "Crashed": "holdfast.testing.crash",
    "ManualClock": "holdfast.testing.clock",
    "ScriptedModel": "holdfast.runtime.models.scripted",
    "Survived": "holdfast.testing.survive",
    "crash_after": "holdfast.testing.crash",
    "make_context": "holdfast.testing.context",
    "survives": "holdfast.testing.survive",
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
        raise AttributeError(f"module 'holdfast.testing' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
