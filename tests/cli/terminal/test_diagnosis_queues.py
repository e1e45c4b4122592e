"""Queues on the command line: what is stuck for want of a worker is told, with what to type."""

import signal
import time
from typing import Any

import pytest
from tests.support.cli_project import Shop

STARTED = "sessions wait"  # in the first line of a worker


@pytest.fixture(params=["sqlite", "postgres"])
def shop(shop: Shop, request: pytest.FixtureRequest) -> Shop:
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        code = (shop.folder / "shop.py").read_text()
        (shop.folder / "shop.py").write_text(code.replace("sqlite:///shop.db", url))
    return shop


def finding(shop: Shop) -> dict[str, Any] | None:
    findings = shop.json("doctor")["findings"]
    found = [one for one in findings if (one["code"], one["subject"]) == ("NO_WORKER", "gpu")]
    return found[0] if found else None


def until_completed(shop: Shop, name: str) -> None:
    end = time.monotonic() + 30
    while shop.json("sessions", "show", name)["state"] != "completed":
        assert time.monotonic() < end, shop.run("sessions", "show", name).stdout
        time.sleep(0.1)


def test_a_queue_that_no_worker_serves_is_told_everywhere(shop: Shop) -> None:
    sent = shop.run("run", "plain", "hi", "-s", "s1", "--detach", "--queue", "gpu")
    assert "perdure worker --queue gpu --app shop:rt" in sent.stdout
    others = shop.start("worker", "--app", "shop:rt", "--queue", "default")
    assert others.stderr is not None
    assert STARTED in others.stderr.readline()
    shop.run("run", "plain", "hi", "-s", "here", "--detach")
    until_completed(shop, "here")
    told = finding(shop)
    assert told is not None
    assert told["text"] == "1 session is due in queue gpu, and no worker serves it"
    assert told["steps"][0]["command"] == "perdure worker --queue gpu"
    assert "perdure worker --queue gpu --app shop:rt" in shop.run("doctor").stdout
    shown = shop.run("sessions", "show", "s1").stdout
    assert "is due, and no worker serves its queue gpu (NO_WORKER)" in shown
    assert "perdure worker --queue gpu --app shop:rt" in shown
    assert "Agent    plain, queue gpu" in shown
    stats = shop.json("db", "stats")
    assert stats["queues"] == {
        "default": {"due": 0, "workers": 1},
        "gpu": {"due": 1, "workers": 0},
    }
    assert "gpu: 1 due, 0 workers" in shop.run("db", "stats").stdout
    served = shop.start("worker", "--app", "shop:rt", "--queue", "gpu")
    try:
        assert served.stderr is not None
        assert STARTED in served.stderr.readline()
        until_completed(shop, "s1")
        assert finding(shop) is None
        assert shop.json("db", "stats")["queues"]["gpu"] == {"due": 0, "workers": 1}
    finally:
        for worker in (served, others):
            worker.send_signal(signal.SIGTERM)
            worker.communicate(timeout=30)
    assert shop.run("doctor").exit_code == 0


def test_who_has_but_the_default_one_reads_nothing_of_others(shop: Shop) -> None:
    shop.run("run", "plain", "hi", "-s", "s1", "--detach")
    assert "queue" not in shop.run("db", "stats").stdout.lower()
    assert "queue" not in shop.run("sessions", "show", "s1").stdout
    assert "--queue" not in shop.run("doctor").stdout


def test_a_worker_is_told_what_is_no_queue(shop: Shop) -> None:
    told = shop.run("worker", "--once", "--queue", "a b")
    assert told.exit_code == 2
    assert "cannot be the name of a queue" in told.stderr
