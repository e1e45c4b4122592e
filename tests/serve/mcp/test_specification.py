"""Views in the words of the specification, which the tools for MCP clients keep."""

from typing import Any

from perdure.serve.mcp.specification import specified, task_answer, task_fields
from perdure.views import tasks


def shared(**more: Any) -> tasks.SandboxTask:
    return tasks.SandboxTask(
        id="t",
        name="n",
        status="running",
        owner="system",
        metadata={},
        agents=(),
        result=None,
        tenant="",
        host="h",
        sandbox="none",
        created_at_ms=1_000,
        updated_at_ms=2_000,
        **more,
    )


def test_the_tools_for_mcp_clients_keep_the_words_of_the_specification() -> None:
    """S3.2, S3.10"""
    blocked = tasks.CommandAvailability(
        available=False, sandbox="bwrap", reason="no bwrap", remedy="install it"
    )
    task = shared(execution=blocked)
    fields = task_fields(task)
    assert fields["createdAt"] == "1970-01-01T00:00:01.000Z"
    assert "execution" not in fields
    assert task_answer(task)["execution"] == {
        "available": False,
        "sandbox": "bwrap",
        "reason": "no bwrap",
        "remedy": "install it",
    }
    free = tasks.CommandAvailability(available=True, sandbox="bwrap")
    assert task_answer(shared(execution=free), status="running") == {
        "success": True,
        "taskId": "t",
        "status": "running",
    }
    log = tasks.TaskLog(task_id="t", logs=())
    assert specified(log) == {"taskId": "t", "logs": []}
