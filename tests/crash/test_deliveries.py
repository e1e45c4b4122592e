"""Deliveries survive a real SIGKILL, wherever it comes: none is lost, none is doubled."""

import subprocess
import sys

import anyio
import pytest
from tests.crash.agents import Place
from tests.crash.delivery_program import FACTS, runtime
from tests.crash.harness import KILLED
from tests.support.paths import ROOT
from tests.support.receiver import Receiver, receiving

from perdure.core.webhooks.signatures import verify
from perdure.runtime.webhooks.deliveries import Deliveries


async def carried(place: Place, receiver: Receiver) -> list[str]:
    """Another process sends the rest; the ids of all deliveries there are."""
    async with runtime(place.url, receiver.url) as rt:
        door = Deliveries(rt._resources.outbox)
        with anyio.fail_after(20):
            while [one async for one in door.all(None, status="waiting")]:
                await rt.work(once=True)  # what the killed one held comes free with its lease
                await rt._resources.store.changed(0.05)
        return [one.id async for one in door.all(None, status="delivered")]


@pytest.mark.parametrize("point", ["made", "sending", "sent", "recorded"])
async def test_a_kill_between_the_commit_and_the_delivery_loses_none_and_doubles_none(
    place: Place, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """S0.60 G1: a receiver that knows ids sees each once, however often it was sent."""
    monkeypatch.setenv("PERDURE_LEASE", "500ms")
    with receiving() as receiver:
        command = [sys.executable, "-m", "tests.crash.delivery_program", place.url, receiver.url]
        killed = await anyio.run_process([*command, point], cwd=ROOT, check=False)
        assert killed.returncode == KILLED, killed.stderr
        before = len(receiver.got)
        made = await carried(place, receiver)
        once = {got.id: got for got in receiver.got}
        assert sorted(once) == sorted(made)
        assert len(made) == FACTS
        assert (before > 0) == (point in ("sent", "recorded"))
        if point == "recorded":
            assert len(receiver.got) == FACTS
        for got in receiver.got:
            at = int(got.headers["webhook-timestamp"]) * 1000
            assert verify(got.headers, got.body, ["hush"], at).ok
            assert got.body == once[got.id].body


def test_the_program_is_killed_and_does_not_end(place: Place) -> None:
    """The check can fail: without a point it comes to its end."""
    with receiving() as receiver:
        command = [
            sys.executable,
            "-m",
            "tests.crash.delivery_program",
            place.url,
            receiver.url,
            "",
        ]
        assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
        assert len(receiver.got) == FACTS
