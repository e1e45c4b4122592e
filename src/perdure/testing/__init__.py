"""Tools for tests of agents and store backends: scripted model, manual clock, crashes on purpose.

`survives` plays a story with a crash after each of its commits, `simulate` in a fleet of simulated
processes with thousands of faults; `perdure.testing.contract` is the
suite for your own store, `perdure.testing.provider_rules` the rules of model providers.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.runtime.models.scripted import ScriptedModel
    from perdure.testing.clock import ManualClock
    from perdure.testing.context import make_context
    from perdure.testing.crash import Crash, Crashed, crash_after
    from perdure.testing.ends import End
    from perdure.testing.simulation.simulate import Simulated, simulate
    from perdure.testing.survive import Survived, survives

_HOMES = {
    "Crash": "perdure.testing.crash",
    "Crashed": "perdure.testing.crash",
    "End": "perdure.testing.ends",
    "ManualClock": "perdure.testing.clock",
    "ScriptedModel": "perdure.runtime.models.scripted",
    "Simulated": "perdure.testing.simulation.simulate",
    "Survived": "perdure.testing.survive",
    "crash_after": "perdure.testing.crash",
    "make_context": "perdure.testing.context",
    "simulate": "perdure.testing.simulation.simulate",
    "survives": "perdure.testing.survive",
}

__all__ = [
    "Crash",
    "Crashed",
    "End",
    "ManualClock",
    "ScriptedModel",
    "Simulated",
    "Survived",
    "crash_after",
    "make_context",
    "simulate",
    "survives",
]


def __getattr__(name: str) -> Any:
    """Import a name at its first use: the contract suite does not need them."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'perdure.testing' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
