"""API of the specification; new programs use Runtime.

Background agents: the six tools as methods of a manager.

    manager = BackgroundManager(rt, session="s")
    launched = await manager.background_task("researcher", "Find sources on tides.")
    answer = await manager.background_output(launched["task_id"], block=True)

Answers are dicts; each about one task has `task_id`, `status` and `resumeCount`.
"""

from perdure.background.manager import BackgroundManager

__all__ = ["BackgroundManager"]
