"""Killed while a session is forked: there is a whole fork, or none."""

from contextlib import suppress

import pytest
from tests.crash.agents import Place
from tests.crash.harness import KILLED, Forker, MakePlace, successor

from perdure import Conflict, NotFound


@pytest.mark.parametrize("point, there", [("commit:1", False), ("write:1", True)])
async def test_killed_while_it_forks_there_is_a_whole_fork_or_none(
    place: Place, forker: Forker, point: str, there: bool
) -> None:
    turns = "look refund"
    assert forker.run(place.folder, "begin", turns) == 0
    forker.kill(place.folder, "copy", turns, at=point)
    async with successor(place, turns) as (rt, session):
        if not there:
            with pytest.raises(NotFound):
                await rt.session("fork").get()
            await session.fork(id="fork")
        fork = rt.session("fork")
        again = await fork.run()
        await rt.approve(again.pending[0].id, by="ana")
        assert (await fork.run()).output == "all done"
        assert (await session.get()).state == "waiting"
    assert [line["tool"] for line in place.effects()] == ["look", "refund"]


async def test_killed_at_any_moment_of_forking_it_is_whole_or_not_there(
    places: MakePlace, forker: Forker
) -> None:
    """Wherever between its first and last step the process is stopped."""
    for number, die_after_s in enumerate([0.0, 0.001, 0.003, 0.01]):
        place = places(str(number))
        assert forker.run(place.folder, "begin", "look refund") == 0
        status = forker.run(place.folder, "copy", "", die_after_s=die_after_s)
        assert status in (0, KILLED)
        async with successor(place, "look refund") as (rt, session):
            if status == KILLED:
                with suppress(Conflict):
                    await session.fork(id="fork")
            types = [event.type for event in await rt.session("fork").events()]
            assert types == ["user", "assistant", "tool_call", "tool_result", "forked"]
