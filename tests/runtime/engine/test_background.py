"""The background task of a runtime: what ends it is told, and it starts again after a close."""

import asyncio
import logging

import pytest

from perdure import Agent, Runtime
from perdure.app import service_of
from perdure.testing import ScriptedModel


def runtime() -> Runtime:
    model = ScriptedModel([{"text": "one"}, {"text": "two"}])
    return Runtime("memory:", agents=[Agent("helper", model=model)])


async def test_work_that_fails_while_the_runtime_closes_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail_at_the_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("not lost")

    async with runtime() as rt:
        service_of(rt).drives.background.run_beside(fail_at_the_end)
        await asyncio.sleep(0)
    (record,) = [item for item in caplog.records if item.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "not lost"


def test_an_exit_in_the_background_stops_the_event_loop_once() -> None:
    rt, loop = runtime(), asyncio.new_event_loop()

    async def leave() -> None:
        raise SystemExit(3)

    async def work() -> None:
        await rt.__aenter__()
        service_of(rt).drives.background.run_beside(leave)
        await asyncio.Event().wait()

    task = loop.create_task(work())
    with pytest.raises(SystemExit):
        loop.run_until_complete(task)
    loop.run_until_complete(asyncio.sleep(0.01))
    task.cancel()
    loop.run_until_complete(rt.__aexit__(None, None, None))
    loop.close()


async def test_a_runtime_whose_background_task_never_ran_can_be_opened_again() -> None:
    """All tasks of an event loop may be cancelled at once, also one that has just been created."""
    rt = runtime()
    async with rt:
        others = asyncio.all_tasks()
        service_of(rt).drives.background.start()
        for task in asyncio.all_tasks() - others:
            task.cancel()
    async with rt:
        background = service_of(rt).drives.background
        assert not background.is_running
        assert (await rt.session("s", agent="helper").run("Go")).output == "one"
        assert background.is_running
