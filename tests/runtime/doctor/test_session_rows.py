"""Rows of streams that can be read, and what the log says about them."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from perdure import Agent, Runtime
from perdure.core.conversation.messages import Answer
from perdure.errors import ModelUnavailable
from perdure.runtime.doctor.session import SessionCheckup
from perdure.runtime.models.base import Request
from perdure.store.sqlite.inspect import SqliteInspector
from perdure.views.events import Delta

HOURS_MS = 3 * 3_600_000


class Busy:
    """Model whose provider asks for a long pause."""

    name = "test:busy"

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        raise ModelUnavailable("busy", retry_after_ms=HOURS_MS)
        yield Answer(text="")


@pytest.mark.parametrize("later_ms, is_damage", [(0, False), (60_000, False), (HOURS_MS, True)])
async def test_a_session_is_due_when_its_log_says_also_after_a_long_pause(
    tmp_path: Path, later_ms: int, is_damage: bool
) -> None:
    """G9: only a due time that the log does not explain is damage"""
    path = tmp_path / "p.db"
    async with Runtime(f"sqlite:///{path}", agents=[Agent("a", model=Busy())]) as rt:
        await rt.session("s", agent="a").send("hi")
        await rt.work(once=True)
        stream = SqliteInspector(path).stream("s//s")
        now = rt._resources.store.now()
    assert stream is not None
    assert stream.due is not None
    assert stream.due > now + HOURS_MS // 2
    late = replace(stream, due=stream.due + later_ms)
    codes = [finding.code for finding in SessionCheckup.create(late, now).damage()]
    assert codes == (["STREAM_DAMAGED"] if is_damage else [])
