"""The records of open calls from the log alone."""

from perdure.core.log import events
from perdure.core.log.events import Event, StampedEvent
from perdure.core.pending.record import PendingRecord, PendingTime
from perdure.core.transfer.open_calls import open_records

CALL = events.ToolCall(id="c1", tool="deploy", params={"b": 1}, agent="a", turn=3)
OTHER = events.ToolCall(id="c0", tool="look", params={}, agent="a", turn=3)
SAID = events.Assistant(role="assistant", content="", agent="a", turn=3)
OPENED = events.Pending(
    pending_id="p1",
    kind="tool",
    call_id="c1",
    tool="deploy",
    input={"b": 1},
    effect_id="e1",
    expires_at=900,
    task_id="t1",
)
RECORD = PendingRecord(
    id="p1",
    session_id="s",
    tenant="acme",
    agent="a",
    task_id="t1",
    message_id="m3",
    part_id="m3.1",
    call_id="c1",
    effect_id="e1",
    tool="deploy",
    input={"b": 1},
    kind="tool",
    time=PendingTime(created=50),
    timeout=900,
)


def rebuilt(*facts: Event) -> list[PendingRecord]:
    asked: list[Event] = [SAID, OTHER, CALL]
    log = [StampedEvent(n, n * 10, event) for n, event in enumerate(asked, 1)]
    log += [StampedEvent(n, n * 10, event) for n, event in enumerate(facts, 5)]
    return open_records(log, "s", "acme", "a")


def news(**said: object) -> events.Progress:
    return events.Progress(pending_id="p1", call_id="c1", **said)  # type: ignore[arg-type]


def test_an_open_call_is_as_its_entry_was() -> None:
    assert rebuilt(OPENED) == [RECORD]


def test_what_the_start_said_is_known() -> None:
    said = news(returned=True, external_ref="x", output="o", estimated_duration=7, expires_at=800)
    (found,) = rebuilt(OPENED, said)
    assert (found.external_ref, found.output, found.estimated_duration) == ("x", "o", 7)
    assert found.timeout == 800
    (endless,) = rebuilt(OPENED, news(returned=True, expires_at=0))
    assert endless.timeout is None


def test_a_started_call_is_processing_since_then() -> None:
    (found,) = rebuilt(OPENED, news(started=True), news(started=True))
    assert (found.status, found.time.started) == ("processing", 60)


def test_a_start_that_was_cut_off_is_told_until_it_comes_back() -> None:
    """S0.81"""
    cut_off = news(returned=True, problem="START_INTERRUPTED")
    (found,) = rebuilt(OPENED, news(started=True), cut_off)
    assert (found.problem, found.status) == ("START_INTERRUPTED", "waiting")
    (again,) = rebuilt(OPENED, cut_off, news(returned=True))
    assert again.problem is None


def test_what_is_decided_or_settled_is_not_open() -> None:
    settled = events.Settled(pending_id="p1", status="completed", call_id="c1")
    assert rebuilt(OPENED, settled) == []
    decided = events.Decision(pending_id="p1", kind="deny", by="ana", via="ui", call_id="c1")
    assert rebuilt(OPENED, decided) == []
    assert rebuilt(OPENED, settled, news(started=True)) == []
