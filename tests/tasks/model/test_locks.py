"""Rules of locks."""

import pytest

from perdure.errors import Conflict
from perdure.tasks.model import locks
from perdure.tasks.model.locks import LockMode, LockRequest, LockState


def request(owner: str, mode: LockMode = "exclusive", timeout: int | None = None) -> LockRequest:
    return LockRequest(owner, f"token-{owner}", "process", mode, timeout)


@pytest.mark.parametrize("first", locks.MODES)
@pytest.mark.parametrize("second", locks.MODES)
def test_only_two_collaborative_holders_share_a_lock(first: LockMode, second: LockMode) -> None:
    """S3.54, C21"""
    state, _ = locks.acquire(LockState("r"), request("a", first), 1)
    if first == second == "collaborative":
        assert len(locks.acquire(state, request("b", second), 2)[0].holders) == 2
        return
    with pytest.raises(Conflict) as refused:
        locks.acquire(state, request("b", second), 2)
    assert refused.value.code == "LOCK_CONFLICT"
    assert refused.value.message == "Resource 'r' is already locked by 'a'"


def test_the_version_grows_with_each_acquisition_and_never_starts_over() -> None:
    """S3.55"""
    state = LockState("r")
    for version in range(1, 5):
        state, holder = locks.acquire(state, request("a"), version)
        assert holder.version == state.version == version
        state = locks.release(state, holder.token)


def test_the_same_token_acquires_again_and_must_release_as_often() -> None:
    """S3.58, C22"""
    state, first = locks.acquire(LockState("r"), request("a"), 1)
    state, again = locks.acquire(state, request("a"), 2)
    assert again.version == first.version
    state = locks.release(state, first.token)
    assert state.holders
    assert not locks.release(state, first.token).holders


def test_expired_and_dead_holders_are_dropped_and_others_kept() -> None:
    """S3.56, S3.66"""
    state, _ = locks.acquire(LockState("r"), request("a", "collaborative", 10), 100)
    state, _ = locks.acquire(state, request("b", "collaborative"), 100)
    assert [h.owner for h in locks.without_dead(state, 109).holders] == ["a", "b"]
    assert [h.owner for h in locks.without_dead(state, 110).holders] == ["b"]
    assert not locks.without_dead(state, 110, lambda _: False).holders


def test_a_release_with_another_token_changes_nothing() -> None:
    """S3.56"""
    state, _ = locks.acquire(LockState("r"), request("a"), 1)
    assert locks.release(state, "other") is state


def test_waits_double_up_to_a_second() -> None:
    """S3.53"""
    assert [locks.wait_ms(n) for n in range(1, 7)] == [100, 200, 400, 800, 1000, 1000]
