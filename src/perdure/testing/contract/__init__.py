"""The contract of a store as a suite that any backend can be held to.

    async with my_harness() as harness: ...      # see Harness
    report = await run(my_harness)
    print(report.text())

With pytest, parametrise over CONTRACT and play each case. What only some backends can do is an
optional capability; the required ones cannot be declared away.
"""

from dataclasses import dataclass

from perdure.testing.contract import commits, entries, leases, races, sharing, whispers
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
    for module in (commits, entries, leases, races, sharing, whispers)
    for case in module.cases.all
)


@dataclass(frozen=True, slots=True)
class Report:
    """What a backend has, and which promises it broke."""

    capabilities: frozenset[str]  # the optional ones it claims
    kept: tuple[Case, ...]
    broken: tuple[tuple[Case, Exception], ...]

    def text(self) -> str:
        """The report as lines for people."""
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
    """Play every case that applies, each on a harness of its own."""
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
            except Exception as error:  # noqa: BLE001 - whatever it is, the promise is broken
                broken.append((case, error))
            else:
                kept.append(case)
    return Report(capabilities, tuple(kept), tuple(broken))
