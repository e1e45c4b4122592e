"""Two agents share a task; one of them breaks it, and a person goes back to before that."""

from pathlib import Path

from perdure import Runtime
from perdure.tasks import LockManager, MultiLayerPersistence, TaskLifecycle, TaskRegistry

rt = Runtime("sqlite:///perdure.db", tasks={"root": "./tasks"})


async def main(rt: Runtime) -> None:
    """Create a task, work on it with two agents, restore a checkpoint, complete it."""
    lifecycle, layers, locks = TaskLifecycle(rt), MultiLayerPersistence(rt), LockManager(rt)
    await lifecycle.create_task({"name": "Fix the parser", "id": "parser", "owner": "ana"})
    workspace = Path("tasks/parser/workspace")

    await lifecycle.attach_agent("parser", "coder")  # the first agent starts the task
    (workspace / "parser.py").write_text("def parse(): ...\n")
    good = await layers.create_checkpoint("parser", "tests pass")

    await lifecycle.attach_agent("parser", "reviewer")
    lock = await locks.acquire_lock_with_retry("task:parser", "reviewer", timeout=60_000)
    (workspace / "parser.py").write_text("broken\n")
    decision = {"agentId": "reviewer", "decision": "Rewrite it", "reasoning": "It is slow."}
    await layers.append_decision("parser", decision, guard=lock)  # refused if the lock was lost
    await locks.release_lock(lock)

    print(await layers.diff_checkpoints("parser", good))
    await layers.restore_checkpoint("parser", good)  # the broken state is saved first
    await lifecycle.complete_task("parser", {"success": True, "message": "kept the old parser"})
    task = await TaskRegistry(rt).get_by_id("parser")
    print(task and (task.status, task.agents), (workspace / "parser.py").read_text())


if __name__ == "__main__":
    rt.run_sync(main)
