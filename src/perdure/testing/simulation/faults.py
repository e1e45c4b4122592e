"""Faults of one seed: which happen, which have happened, and which a shrunk run allows."""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from perdure.testing.simulation.draws import Draws
from perdure.testing.simulation.loop import START_S

# For each kind the places at which its faults happen: how likely each is beside other kinds, and
# how likely if the seed has few kinds. Rates are per operation, effect or message; those of the
# last two kinds and of outages per look, those of `at some time` in crashes per second.
KINDS: Final[Mapping[str, Mapping[str, tuple[float, float]]]] = {
    "crash": {
        "crash before a result is recorded": (0.1, 0.3),
        "crash before an operation": (0.003, 0.006),
        "crash after a commit": (0.02, 0.07),
        "crash at an effect": (0.05, 0.1),
        "crash at some time": (0.15, 0.5),
    },
    "freeze": {
        "freeze at an operation": (0.002, 0.01),
        "freeze after a commit": (0.02, 0.12),
        "freeze at an effect": (0.02, 0.08),
    },
    "lost_reply": {"lost reply": (0.03, 0.12), "lost reply to a claim": (0.1, 0.4)},
    "unavailable": {"unavailable": (0.01, 0.03), "outage": (0.1, 0.3)},
    "stall": {"stall": (0.003, 0.01)},
    "signal": {"lost signal": (0.2, 0.6), "doubled signal": (0.2, 0.3), "late signal": (0.2, 0.5)},
    "clock": {"clock step": (0.1, 0.3), "skewed clock": (0.5, 1.0)},
}
MIXED: Final = 0.3  # of the seeds have faults of all kinds, the others of one or two
CRASHING: Final = 0.7  # of the others have crashes


class Fault(NamedTuple):
    """A fault: the number-th draw of a process at a place."""

    place: str
    process: str
    number: int


class FiredFault(NamedTuple):
    """A fault that happened, and when."""

    fault: Fault
    at_s: float
    detail: str

    def __str__(self) -> str:
        process = f" of {self.fault.process}" if self.fault.process else ""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.at_s - START_S:8.3f} s  {self.fault.place}{process}{detail}"


class Faults:
    """Faults of one seed. A seed uses few kinds, each often."""

    def __init__(
        self,
        draws: Draws,
        kinds: Collection[str],
        allowed: frozenset[Fault] | None = None,
    ) -> None:
        self.draws = draws
        self.fired: list[FiredFault] = []
        self._allowed = allowed
        self.rates = _rates(draws, kinds)
        self.latency_s = draws.choice([0.0005, 0.005, 0.05], "latency of the store")
        self.has_late_commits = draws.fraction("late commits") < 0.5

    def happens(self, place: str, process: str, now_s: float, detail: str = "") -> bool:
        """Return whether a fault happens, and remember it."""
        rate = self.rates.get(place, 0.0)
        if not rate:
            return False
        number, value = self.draws.numbered(place, process)
        return value < rate and self.fires(Fault(place, process, number), now_s, detail)

    def fires(self, fault: Fault, now_s: float, detail: str = "") -> bool:
        """Return whether a fault that was drawn is allowed, and remember it."""
        if not self.rates or (self._allowed is not None and fault not in self._allowed):
            return False
        self.fired.append(FiredFault(fault, now_s, detail))
        return True

    @property
    def are_exhausted(self) -> bool:
        """True if every fault that is allowed has happened."""
        return self._allowed is not None and len(self.fired) >= len(self._allowed)

    def stop(self) -> None:
        """Let no more faults happen."""
        self.rates = {}


def _rates(draws: Draws, kinds: Collection[str]) -> dict[str, float]:
    """Return the rate of each fault that this seed has."""
    names = [name for name in KINDS if name in kinds]
    is_mixed = len(names) > 1 and draws.fraction("kinds") < MIXED
    if not is_mixed and names:
        chosen = [draws.choice(names, "first kind"), draws.choice(names, "second kind")]
        if "crash" in names and draws.fraction("crashes") < CRASHING:
            chosen[0] = "crash"
        names = [name for name in names if name in chosen]
    rates: dict[str, float] = {}
    for name in names:
        for place, (seldom, often) in KINDS[name].items():
            if draws.fraction(f"has {place}") < 0.8:
                rates[place] = seldom if is_mixed else often
    return rates
