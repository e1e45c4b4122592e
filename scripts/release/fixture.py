"""Write the stores of this version for the tests of later ones: databases, files, an export.

python -m scripts.release.fixture FOLDER                 perdure.db, files, tasks, export.jsonl
python -m scripts.release.fixture FOLDER --postgres URL  postgres.sql too, by an empty database

Each store has the same sessions, in every state. A process of its own wrote it, which was killed
inside the tool of the session `interrupted`. The tests open, convert and complete them.
"""

import argparse
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import anyio
from scripts.release.agents import KILLS, agents

from perdure import Runtime
from perdure.options import WebhookTarget
from perdure.tasks import LockManager, MultiLayerPersistence, TaskLifecycle
from perdure.testing import ManualClock

WRITTEN_AT: Final = datetime(2026, 11, 16, 15, 6, tzinfo=UTC)
SCHEMA: Final = "perdure_release"  # of the dump of PostgreSQL
_RECEIVER: Final[WebhookTarget] = {
    "url": "https://ops.example/hook",
    "secret": "kept",
    "on": ["completed"],
}
_GO: Final = {
    "approval": ("refunds", "Refund order 991"),
    "deferred": ("deliveries", "Where is order 7?"),
    "finished": ("refunds", "Refund order 991"),
    "cancelled": ("refunds", "Refund order 991"),
    "voted": ("payouts", "Pay out"),
    "budget": ("thrifty", "Look it up"),
    "timer": ("sleepers", "Wait"),
    "lead": ("lead", "Write about tides"),
    "waiting-lead": ("lead", "Write about tides"),
    "failed": ("failing", "Try"),
}


def open_runtime(store: str, tasks: Path, clock: ManualClock) -> Runtime:
    """Return a runtime with the agents, a receiver of webhooks and a folder of tasks."""
    return Runtime(
        store,
        agents=agents(),
        clock=clock,
        webhooks=[_RECEIVER],
        webhook_secret="kept",  # noqa: S106 - of a fixture
        tasks={"root": tasks},
    )


async def _write(store: str, tasks: Path) -> None:
    """Write everything into a store; the tool of the last session kills this process."""
    async with open_runtime(store, tasks, ManualClock(WRITTEN_AT)) as rt:
        for session_id, (agent, message) in _GO.items():
            await rt.session(session_id, agent=agent).run(message, key="first")
        await _settle(rt)
        await rt.session("queued", agent="refunds").send("Refund order 991", key="first")
        await _write_task(rt, tasks)
        await rt.session("interrupted", agent="charges").run("Charge order 5")


async def _settle(rt: Runtime) -> None:
    """Complete, cancel and vote; a child ends whose parent has not taken its result yet."""
    waiting = {
        name: (await rt.session(name).get()).pending for name in ("finished", "voted", "cancelled")
    }
    await rt.approve(waiting["finished"][0].id, by="ana")
    await rt.session("finished").run()
    await rt.approve(waiting["voted"][0].id, by="ana")
    await rt.session("cancelled").cancel(by="ana")
    (asker,) = [
        task
        async for task in rt.background_tasks(parent="lead")
        if (await rt.session(task.session_id).get()).pending
    ]
    child = rt.session(asker.session_id)
    (question,) = (await child.get()).pending
    await rt.respond(question.id, "That one", by="ana")
    await child.run()


async def _write_task(rt: Runtime, tasks: Path) -> None:
    """Write a task with state, log, decision, checkpoint and lock."""
    lifecycle, layers = TaskLifecycle(rt), MultiLayerPersistence(rt)
    await lifecycle.create_task({"name": "Data", "id": "data", "owner": "agent-1"})
    await lifecycle.start_task("data", "agent-1")
    (tasks / "data" / "workspace" / "rows.csv").write_text("1,2\n")
    await layers.save_state("data", {"status": "running", "data": {"step": 1}})
    await layers.append_log("data", {"level": "info", "message": "read"})
    await layers.create_checkpoint("data", "after the first step")
    await LockManager(rt).acquire_lock_with_retry(
        "task:data", "agent-1", "exclusive", 0, 86_400_000
    )


async def _export(store: str, tasks: Path) -> list[str]:
    async with open_runtime(store, tasks, ManualClock(WRITTEN_AT)) as rt:
        children = {
            task.session_id async for task in rt.background_tasks()
        }  # exported with their parents
        ids = {item.session_id async for item in rt.sessions()} - children
        return [line for i in sorted(ids) async for line in rt.session(i).export(secrets=True)]


def _write_in_process(store: str, tasks: Path) -> None:
    """Write a store in a process of its own, which has to be killed by its last tool."""
    command = [sys.executable, "-m", "scripts.release.fixture", "--store", store, str(tasks)]
    done = subprocess.run(command, env={**os.environ, KILLS: "1"}, check=False)  # noqa: S603
    if done.returncode != -9:
        raise SystemExit(f"the process that wrote {store} ended with {done.returncode}")


def _write_database(folder: Path, work: Path) -> None:
    database = work / "perdure.db"
    _write_in_process(f"sqlite:///{database}", folder / "tasks")
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(database, folder)
    lines = anyio.run(_export, f"sqlite:///{database}", folder / "tasks")
    (folder / "export.jsonl").write_text("".join(lines), "utf-8")


def _write_files(folder: Path, work: Path) -> None:
    _write_in_process(f"files:{folder}/files", work / "tasks-of-files")
    own = folder / "files" / ".perdure"
    with closing(sqlite3.connect(own / "store.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for path in own.iterdir():  # locks, sockets, and what the next start writes again
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in ("store.db", "journal.jsonl"):
            path.unlink()


def _write_postgres(folder: Path, work: Path, url: str) -> None:
    _write_in_process(f"{url}?schema={SCHEMA}", work / "tasks-of-postgres")
    command = ["pg_dump", "--no-owner", "--inserts", f"--schema={SCHEMA}", url]
    dump = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603
    text = re.sub(r"^(--.*|\\.*|)\n", "", dump, flags=re.MULTILINE)
    (folder / "postgres.sql").write_text(text, "utf-8")


def main() -> None:
    """Write the fixture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a new folder, or the folder of tasks")
    parser.add_argument("--store", help="only fill this store (used by the script itself)")
    parser.add_argument("--postgres", metavar="URL", help="an empty database")
    options = parser.parse_args()
    folder: Path = options.folder.absolute()
    if options.store:
        anyio.run(_write, options.store, folder)
        return
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        _write_database(folder, work)
        _write_files(folder, work)
        if options.postgres:
            _write_postgres(folder, work, options.postgres)


if __name__ == "__main__":
    main()
