"""A session whose model is too busy, as the command line tells of it."""

from pathlib import Path

import pytest
from tests.support.cli_project import Shop

BUSY = """
from pathlib import Path
from perdure import Agent, Runtime
from perdure.errors import ModelError, ModelUnavailable
from perdure.testing import ScriptedModel

class Moody(ScriptedModel):
    async def answer(self, request):
        if Path("busy").exists():
            asked_ms = int(Path("busy").read_text() or 0)
            raise ModelUnavailable("too many requests", retry_after_ms=asked_ms)
        if Path("broke").exists():
            raise ModelError("credit is used up", code="MODEL_QUOTA", hint="pay the bill")
        async for piece in super().answer(request):
            yield piece

rt = Runtime("sqlite:///shop.db", agents=[Agent("a", model=Moody([{"text": "Hello there."}]))])
"""


@pytest.fixture
def busy(shop: Shop) -> Shop:
    """A session that backs off for an hour."""
    Path("shop.py").write_text(BUSY)
    Path("busy").write_text("3600000")
    assert shop.run("run", "a", "Go", "-s", "s", "--timeout", "0.5s").exit_code == 6
    return shop


def test_it_is_shown_until_when_it_waits_and_what_to_type(busy: Shop) -> None:
    """S0.25"""
    shown = busy.run("sessions", "show", "s").stdout.splitlines()
    assert shown[0].startswith("Session s backs off for 1h")
    assert shown[0].endswith("the model request failed.")
    assert shown[1] == "  Attempt 1: too many requests"
    assert shown[2].endswith("perdure sessions resume s --app shop:rt")
    found = busy.json("sessions", "show", "s")
    assert (found["state"], found["status"]["type"]) == ("running", "retry")
    assert found["status"]["next"] == found["nextAt"]
    assert busy.run("worker", "--once").exit_code == 0  # which has nothing to do
    assert len(retries(busy)) == 1


def retries(shop: Shop) -> list[int]:
    found = shop.json("sessions", "events", "s")["events"]
    return [one["data"]["attempt"] for one in found if one["type"] == "retry"]


def test_resuming_asks_at_once(busy: Shop) -> None:
    assert busy.run("sessions", "resume", "s", "--timeout", "0.5s").exit_code == 6
    assert retries(busy) == [1, 2]
    Path("busy").unlink()
    done = busy.run("sessions", "resume", "s")
    assert (done.exit_code, "Hello there." in done.stdout) == (0, True)
    assert retries(busy) == [1, 2]


def test_it_can_be_cancelled(busy: Shop) -> None:
    assert busy.run("sessions", "cancel", "s").exit_code == 0
    shown = busy.json("sessions", "show", "s")
    assert (shown["state"], shown["status"]) == ("cancelled", {"type": "idle"})


def test_a_run_in_the_foreground_says_why_it_waits(shop: Shop) -> None:
    Path("shop.py").write_text(BUSY)
    Path("busy").write_text("3600000")
    done = shop.run("run", "a", "Go", "-s", "s", "--timeout", "0.5s")
    assert "↻ the model request failed (too many requests); attempt 2 in 1h" in done.output


def test_a_run_in_the_foreground_says_who_stands_in(shop: Shop) -> None:
    spare = 'fallback=ScriptedModel([{"text": "I am here."}], name="spare:one")'
    told = BUSY.replace('[{"text": "Hello there."}])', f'[{{"text": "Hello there."}}]), {spare}')
    Path("shop.py").write_text(told)
    Path("broke").touch()
    done = shop.run("run", "a", "Go", "-s", "s")
    assert (
        "↻ the model request failed (credit is used up); continuing with spare:one" in done.output
    )
    assert "I am here." in done.stdout


def test_what_stays_wrong_is_told_with_what_to_do_and_goes_on_after_it(shop: Shop) -> None:
    Path("shop.py").write_text(BUSY)
    Path("broke").touch()
    failed = shop.run("run", "a", "Go", "-s", "s")
    assert failed.exit_code == 1
    assert "Session s failed: credit is used up" in failed.output
    assert "hint: pay the bill" in failed.output
    assert "perdure sessions resume s" in failed.output
    Path("broke").unlink()
    done = shop.run("sessions", "resume", "s")
    assert (done.exit_code, "Hello there." in done.stdout) == (0, True)
    users = [one for one in shop.json("sessions", "events", "s")["events"] if one["type"] == "user"]
    assert len(users) == 1
