"""Every backend keeps every promise of the contract that applies to it."""

from dataclasses import replace
from typing import Self

import anyio
import pytest
from hypothesis import HealthCheck, given, settings

from perdure.store.memory import MemoryStore
from perdure.testing.contract import (
    CONTRACT,
    OPTIONAL,
    REQUIRED,
    Case,
    HandClock,
    MakeHarness,
    run,
)
from perdure.testing.contract.programs import Step, play, programs


@pytest.mark.parametrize("case", CONTRACT, ids=lambda case: case.name)
async def test_a_backend_keeps_its_promise(case: Case, make_harness: MakeHarness) -> None:
    """S0.79"""
    async with make_harness() as harness:
        if not case.applies_to(harness):
            pytest.skip(f"the backend does not claim to be {case.capability}")
        await case.play(harness)


@settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(program=programs())
def test_a_backend_answers_like_the_reference(
    make_harness: MakeHarness, program: list[Step]
) -> None:
    """S0.79"""
    anyio.run(play, make_harness, program)


def test_every_capability_has_cases() -> None:
    assert {case.capability for case in CONTRACT} == REQUIRED.keys() | OPTIONAL.keys()
    assert len({case.name for case in CONTRACT}) == len(CONTRACT)


class _Forgetful:
    """A backend that says it is durable and is not, and would rather not do leases."""

    def __init__(self, capabilities: frozenset[str]) -> None:
        self.clock = HandClock()
        self.capabilities = capabilities

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def open(self) -> MemoryStore:
        store = MemoryStore(self.clock)
        await store.open()
        return store


async def test_the_report_says_what_a_backend_has_and_what_it_broke() -> None:
    report = await run(lambda: _Forgetful(frozenset({"durable"})))
    broken = {case.capability for case, _ in report.broken}
    assert broken == {"durable"}
    lines = report.text().splitlines()
    assert any(line.startswith("yes  leases") for line in lines)
    assert any(line.startswith("NO   durable") for line in lines)
    assert any(line.startswith("no   shared") for line in lines)
    assert any(line.startswith("BROKEN everything_is_there") for line in lines)


async def test_a_required_capability_cannot_be_declared_away() -> None:
    harness = _Forgetful(frozenset())
    assert all(case.applies_to(harness) for case in CONTRACT if case.capability in REQUIRED)
    with pytest.raises(ValueError, match="no optional capability leases"):
        CONTRACT[0].applies_to(_Forgetful(frozenset({"leases"})))
    assert not replace(CONTRACT[0], capability="shared").applies_to(harness)
