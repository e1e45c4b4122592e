"""What every door calls a state: the table of projections, row by row."""

from itertools import product
from typing import get_args

import pytest

from perdure.core.session.projections import TABLE, StateDetails, WaitFor, project
from perdure.views.literals import RunState

# standing, task, background, A2A, session, pending call
ROWS = [
    (StateDetails("pending"), "pending", "running", "SUBMITTED", "busy", ()),
    (StateDetails("running"), "running", "running", "WORKING", "busy", ()),
    (StateDetails("running", follow_up=True), "running", "resumed", "WORKING", "busy", ()),
    (
        StateDetails("waiting", waits_for="submitter"),
        "running",
        "running",
        "WORKING",
        "waiting_async",
        ("waiting", "processing"),
    ),
    (
        StateDetails("waiting", follow_up=True, waits_for="submitter"),
        "running",
        "resumed",
        "WORKING",
        "waiting_async",
        ("waiting", "processing"),
    ),
    (
        StateDetails("waiting", waits_for="approver"),
        "running",
        "running",
        "INPUT_REQUIRED",
        "waiting_async",
        ("waiting",),
    ),
    (
        StateDetails("waiting", follow_up=True, waits_for="approver"),
        "running",
        "resumed",
        "INPUT_REQUIRED",
        "waiting_async",
        ("waiting",),
    ),
    (StateDetails("running", backing_off=True), "running", "running", "WORKING", "retry", ()),
    (StateDetails("completed"), "completed", "completed", "COMPLETED", "idle", ("completed",)),
    (StateDetails("failed"), "failed", "error", "FAILED", "idle", ("failed", "expired")),
    (StateDetails("cancelled"), "cancelled", "cancelled", "CANCELED", "idle", ("cancelled",)),
]


@pytest.mark.parametrize("standing, task, background, a2a, session, pending", ROWS)
def test_the_table_of_projections(
    standing: StateDetails,
    task: str,
    background: str,
    a2a: str,
    session: str,
    pending: tuple[str, ...],
) -> None:
    """SX.1 C1 S0.25 S4.53"""
    row = project(standing)
    assert (row.task, row.background, row.a2a) == (task, background, a2a)
    assert (row.session, row.pending) == (session, pending)


ALL = [
    StateDetails(state, follow_up, waits_for, backing_off)
    for state, follow_up, waits_for, backing_off in product(
        get_args(RunState), (False, True), (None, *get_args(WaitFor)), (False, True)
    )
]


@pytest.mark.parametrize("standing", ALL)
def test_every_standing_has_a_word_on_every_surface(standing: StateDetails) -> None:
    """SX.1"""
    row = project(standing)
    assert row.task in {"pending", "running", "completed", "failed", "cancelled"}
    assert row.background in {"running", "resumed", "completed", "error", "cancelled"}
    assert row.session in {"idle", "busy", "retry", "waiting_async"}
    assert row.a2a in {
        "SUBMITTED",
        "WORKING",
        "INPUT_REQUIRED",
        "COMPLETED",
        "FAILED",
        "CANCELED",
    }


def test_every_row_is_used() -> None:
    """SX.1"""
    assert {id(project(standing)) for standing in ALL} == {id(row) for row in TABLE.values()}


def test_a_follow_up_differs_only_in_the_word_for_background_tasks() -> None:
    """C2"""
    for standing in ALL:
        first, later = project(standing), project(StateDetails(standing.state, True))
        if standing == StateDetails(standing.state):
            assert (first.task, first.a2a, first.session) == (later.task, later.a2a, later.session)
