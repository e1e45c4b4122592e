"""The README's program with a real provider: nothing is changed but the model."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.models import FORMATS, model_at
from tests.support.paths import EXAMPLES

from perdure import Runtime
from perdure.testing.endpoint import fake_endpoint
from perdure.testing.provider_rules import Format


@FORMATS
async def test_the_program_runs_when_only_the_model_is_another(
    format_: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.delitem(sys.modules, "refund", raising=False)
    program = importlib.import_module("refund")
    agent = program.agent
    store = f"sqlite:///{tmp_path}/s.db"
    with fake_endpoint(program.TURNS) as endpoint:

        async def run() -> str:
            """One process's part of the work."""
            real = replace(agent, model=model_at(endpoint.url, format_))
            async with Runtime(store, agents=[real]) as rt:
                result = await rt.session("order-991", agent=real).run("Refund", key="start")
                for call in result.pending:
                    if call.kind == "approval":
                        await rt.approve(call.id, by="ana")
                    else:
                        await rt.submit_result(call.id, "collected")
                return result.output or result.state

        assert [await run(), await run()] == ["waiting", "waiting"]
        assert await run() == "Done: the money is on its way and the parcel was collected."
        assert endpoint.refused == []
        assert [one.turn for one in endpoint.requests] == [0, 1, 2, 3]
    monkeypatch.delitem(sys.modules, "refund")
