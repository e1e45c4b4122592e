"""Where nothing is kept, nobody can be asked: a call that needs an approval is denied."""

import pytest
from tests.support.shop import agent, ran, refunds

from perdure.sessions import AgentSystemBuilder, InMemoryStorage, NoOpStorage, SessionStorage


@pytest.mark.parametrize("storage", [NoOpStorage(), InMemoryStorage()])
async def test_without_tracking_a_gated_call_is_denied_and_the_run_goes_on(
    storage: SessionStorage, caplog: pytest.LogCaptureFixture
) -> None:
    """S4.5"""
    ran.clear()
    one = agent(refunds(5), {"text": "Done."})
    builder = AgentSystemBuilder().with_storage(storage).with_agents(one)
    system = await builder.with_session_id("s").build()
    result = await system.executor.execute(one, "Go")
    is_kept = isinstance(storage, InMemoryStorage)
    assert result.state == ("waiting" if is_kept else "completed")
    warning = "Tool requires approval but task tracking not enabled, denying"
    assert (warning in caplog.text) is not is_kept
    assert ran == []
