"""The values that users hold."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perdure.errors import Refused
from perdure.runtime.values import Context
from perdure.views.base import bind
from perdure.views.calls import CallTimes, Decision, PendingCall
from perdure.views.values import File, parse_duration


def pending(**fields: Any) -> PendingCall:
    known: dict[str, Any] = {
        "id": "p_1",
        "kind": "tool",
        "status": "waiting",
        "session_id": "s_1",
        "agent": "support",
        "tool": "deploy",
        "args": {"branch": "main"},
        "call_id": "c_1",
        "effect_id": "e_1",
        "time": CallTimes(created=1),
    }
    return PendingCall(**(known | fields))


def test_a_duration_may_be_a_timedelta() -> None:
    assert parse_duration(timedelta(minutes=1, milliseconds=5)) == 60_005
    assert parse_duration("1h30m") == 5_400_000
    with pytest.raises(Refused, match="not a duration"):
        parse_duration(timedelta(seconds=-1))


def test_values_are_frozen_varied_by_replace_and_hashable() -> None:
    call = pending()
    with pytest.raises(AttributeError):
        call.status = "completed"  # type: ignore[misc]
    assert replace(call, status="completed").status == "completed"
    assert Decision(kind="approve", by="ana", via="cli", at_ms=1).at.year == 1970
    assert len({call, pending(), Context(deps=None, args={"a": [1]})}) == 2


async def test_the_callback_secret_is_known_only_inside_its_tool() -> None:
    with pytest.raises(Refused, match="available only inside its tool") as caught:
        _ = pending().callback_secret
    assert caught.value.code == "NOT_IN_TOOL"
    inside = bind(pending(), _secret=lambda: "hush")
    assert inside.callback_secret == "hush"  # noqa: S105 - a test's secret
    assert "hush" not in repr(inside)
    assert "secret" not in repr(inside)
    assert inside == pending()


async def test_marking_as_started_reaches_the_runtime_and_outside_does_nothing() -> None:
    """S0.19"""
    marks: list[str] = []

    async def mark() -> None:
        marks.append("started")

    await bind(pending(), _mark_started=mark).mark_started()
    await pending().mark_started()
    assert marks == ["started"]


async def test_progress_reaches_the_runtime_and_outside_does_nothing() -> None:
    told: list[tuple[str, float | None]] = []

    async def tell(message: str, percent: float | None) -> None:
        told.append((message, percent))

    ctx = Context(deps=None, _progress=tell)
    await ctx.progress("half", 50)
    await ctx.progress("going on")
    await Context(deps=None).progress("nobody listens")
    assert told == [("half", 50), ("going on", None)]
    with pytest.raises(Refused, match="from 0 to 100"):
        await ctx.progress("more than all", 101)


def test_a_context_does_not_show_its_deps() -> None:
    assert "hunter2" not in repr(Context(deps="hunter2"))


@pytest.mark.parametrize(
    "name, media_type",
    [
        ("chart.png", "image/png"),
        ("notes.md", "text/markdown"),
        ("all.tar.gz", "application/gzip"),
        ("unknown.zzz", "application/octet-stream"),
        ("no_ending", "application/octet-stream"),
    ],
)
def test_a_file_is_read_with_its_name_and_a_guessed_type(
    tmp_path: Path, name: str, media_type: str
) -> None:
    (tmp_path / name).write_bytes(b"\x00bytes")
    assert File.read(tmp_path / name) == File(media_type, data=b"\x00bytes", name=name)


def test_a_file_does_not_show_its_bytes() -> None:
    assert "secret" not in repr(File("text/plain", data=b"secret"))


def test_a_file_has_either_bytes_or_a_url() -> None:
    assert File("image/png", url="https://x.example/a.png").data is None
    assert File("text/plain", data=b"").url is None
    with pytest.raises(Refused, match="either data or a url"):
        File("image/png")
    with pytest.raises(Refused, match="either data or a url"):
        File("image/png", data=b"", url="https://x.example")
    with pytest.raises(Refused, match="'png' is not a media type"):
        File("png", data=b"")
