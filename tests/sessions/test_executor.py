"""An executor on a runtime that others use, too."""

import pytest

from perdure import Agent, Runtime
from perdure.errors import Refused
from perdure.sessions import AgentExecutor, InMemoryStorage, NoOpStorage
from perdure.testing import ScriptedModel


@pytest.mark.parametrize("storage_class", [InMemoryStorage, NoOpStorage])
@pytest.mark.parametrize("is_created_open", [False, True])
async def test_an_executor_leaves_a_runtime_alone_that_is_open(
    storage_class: type[InMemoryStorage | NoOpStorage], is_created_open: bool
) -> None:
    model = ScriptedModel([{"text": "one"}])
    rt, storage = Runtime("memory:", agents=[Agent("helper", model=model)]), storage_class()
    executor = AgentExecutor(rt, storage, "s")
    async with rt:
        if is_created_open:
            executor = AgentExecutor(rt, storage, "s")
        with pytest.raises(Refused, match="open already"):
            await executor.execute("helper", "Go")
        assert (await rt.session("own", agent="helper").run("Go")).output == "one"
    assert (await executor.execute("helper", "Go")).output == "one"
