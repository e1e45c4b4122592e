"""The engine writes the same events and sends the same requests as the one that was recorded."""

from collections import Counter

import pytest
from tests.support import drive_scenarios

CHUNK = 20
KINDS = {"assistant", "tool_call", "tool_started", "tool_result", "pending", "decision", "settled"}
KINDS |= {"progress", "retry", "compacted", "cancelled", "agent_error", "agent_complete"}
KINDS |= {"safety_limit", "user", "agent_start"}


@pytest.mark.parametrize("first", range(0, drive_scenarios.COUNT, CHUNK))
def test_a_drive_writes_the_recorded_events_and_sends_the_recorded_requests(first: int) -> None:
    for seed, log in list(drive_scenarios.recorded().items())[first : first + CHUNK]:
        played = drive_scenarios.play(seed)
        for part in ("events", "requests", "end"):
            assert played[part] == log[part], f"{part} of seed {seed}"


def test_the_recorded_drives_have_every_kind_of_event_that_a_driver_writes() -> None:
    recorded = drive_scenarios.recorded().values()
    types = Counter(type_ for log in recorded for type_, _ in log["events"])
    assert len(recorded) == drive_scenarios.COUNT
    assert types.keys() >= KINDS, KINDS - types.keys()
    assert sum("crash" in request for log in recorded for request in log["requests"]) >= 40
