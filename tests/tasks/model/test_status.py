"""The table of statuses."""

import pytest

from perdure.errors import Conflict
from perdure.tasks.model.status import FINAL, MOVES, Status, TaskMove, moved

VERBS = (TaskMove.START, TaskMove.COMPLETE, TaskMove.FAIL, TaskMove.CANCEL)


def test_no_move_leads_out_of_a_final_status() -> None:
    """S3.22"""
    assert not [move for move in MOVES if move[0] in FINAL]


def test_every_move_is_used() -> None:
    assert {move for _, move in MOVES} == set(TaskMove)


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("move", VERBS)
def test_a_move_that_the_table_does_not_have_is_refused_with_its_text(
    status: Status, move: TaskMove
) -> None:
    """S3.17, S3.18, S3.19, S3.22"""
    if (status, move) in MOVES:
        assert moved(status, move) is MOVES[status, move]
        return
    with pytest.raises(Conflict) as refused:
        moved(status, move)
    assert refused.value.message == f"Cannot {move} task with status: {status}"
    assert refused.value.details["status"] == str(status)
