"""The contract of a store as a test suite for any backend.

    async with my_harness() as harness: ...      # see Harness
    report = await run(my_harness)
    print(report.text())

With pytest, parametrize over CONTRACT and play each case. A feature that only some backends have is
an optional capability; every backend must pass the cases of the required ones.
"""

from dataclasses import dataclass

from perdure.testing.contract import (
    broadcasts,
    claims,
    commits,
    entries,
    leases,
    races,
    shared_store,
)
from perdure.testing.contract.harness import (
    OPTIONAL,
    REQUIRED,
    Case,
    HandClock,
    Harness,
    MakeHarness,
)

__all__ = [
    "CONTRACT",
    "OPTIONAL",
    "REQUIRED",
    "Case",
    "HandClock",
    "Harness",
    "MakeHarness",
    "Report",
    "run",
]

CONTRACT: tuple[Case, ...] = tuple(
    case
    for module in (commits, entries, leases, claims, races, shared_store, broadcasts)
    for case in module.cases.all
)


@dataclass(frozen=True, slots=True)
class Report:
    """Capabilities of a backend, with the cases that it passed and failed."""

    capabilities: frozenset[str]  # the optional ones that it declares
    kept: tuple[Case, ...]
    broken: tuple[tuple[Case, Exception], ...]

    def text(self) -> str:
        """Return the report as lines of text."""
        lines = [self._line(name, text) for name, text in {**REQUIRED, **OPTIONAL}.items()]
        lines += [f"BROKEN {case.name}: {error!r}" for case, error in self.broken]
        return "\n".join(lines)

    def _line(self, capability: str, text: str) -> str:
        if capability in OPTIONAL and capability not in self.capabilities:
            return f"no   {capability:8} {text}"
        count = sum(case.capability == capability for case in self.kept)
        broken = sum(case.capability == capability for case, _ in self.broken)
        return f"{'NO  ' if broken else 'yes '} {capability:8} {text} ({count}/{count + broken})"


async def run(make: MakeHarness) -> Report:
    """Play every case that applies to the backend, each on a new harness."""
    kept: list[Case] = []
    broken: list[tuple[Case, Exception]] = []
    capabilities: frozenset[str] = frozenset()
    for case in CONTRACT:
        async with make() as harness:
            capabilities = harness.capabilities
            if not case.applies_to(harness):
                continue
            try:
                await case.play(harness)
            except Exception as error:  # noqa: BLE001 - any error fails the case
                broken.append((case, error))
            else:
                kept.append(case)
    return Report(capabilities, tuple(kept), tuple(broken))
