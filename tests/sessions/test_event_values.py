"""Values that JSON does not know, in events."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from perdure.sessions import EventLogger, InMemoryStorage
from perdure.sessions.event_values import event_value


class Color(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    at: date


class Hostile:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


@pytest.mark.parametrize(
    "value, stored",
    [
        (date(2024, 2, 29), "2024-02-29"),
        (datetime(2024, 2, 29, 12, tzinfo=UTC), "2024-02-29T12:00:00+00:00"),
        (time(12, 30), "12:30:00"),
        (timedelta(minutes=1.5), 90.0),
        (Decimal("1.10"), "1.10"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Path("a/b"), "a/b"),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({Color.RED}), ["red"]),
        (b"\x00\xff", "AP8="),
        (bytearray(b"x"), "eA=="),
        (Color.RED, "red"),
        (Point(1, date(2024, 1, 2)), {"x": 1, "at": "2024-01-02"}),
        ({date(2024, 1, 2): Decimal(1)}, {"2024-01-02": "1"}),
        (ValueError("no"), "ValueError: no"),
        (object(), "[object]"),
        (Hostile(), "[Hostile]"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_value_keeps_its_value(value: Any, stored: Any) -> None:
    """S2.25"""
    storage = InMemoryStorage()
    log = EventLogger(storage, "s")
    log.log_tool_result("a", "t", "c", {"value": value})
    await log.flush()
    (event,) = await storage.read_events("s")
    assert event["data"]["result"] == {"value": stored}


def test_a_circle_of_objects_ends() -> None:
    """S2.25"""
    circle: dict[str, Any] = {}
    circle["set"] = Point(1, circle)  # type: ignore[arg-type]
    assert "nested too deeply" in str(event_value(circle))
