"""Environment of the demo: a project directory, real commands, and workers that can be killed."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio

from perdure.app import Runtime
from perdure.errors import NotFound, PerdureError, Refused

T = TypeVar("T")

SESSION: Final = "order-991"
ANSWER: Final = "yes, a new teapot leaves tomorrow"
LEASE: Final = "2s"
PATIENCE_S: Final = 30.0
_FILES: Final = ("perdure.yaml", "shop.py", "turns.json")
_SQLITE_STORE: Final = "{driver: sqlite, database: ./perdure.db}"
_POSTGRES_STORE: Final = (
    '{driver: postgres, database: "${PERDURE_DEMO_STORE}"}'  # the URL may contain a password
)


@dataclass(frozen=True, slots=True)
class DemoSnapshot:
    """The session and its events at one moment."""

    session: dict[str, Any]
    events: list[dict[str, Any]]

    @property
    def waiting(self) -> dict[str, str]:
        """Ids of the pending calls, by tool."""
        return {call["tool"]: call["id"] for call in self.session["pending"]}


@dataclass(slots=True)
class DemoEnvironment:
    """Project, store and processes of one demo."""

    folder: Path
    store: str | None = None  # None: a SQLite file in the folder
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def create(self) -> None:
        """Create the project. Raises Refused if the directory is not empty."""
        if self.folder.exists() and any(self.folder.iterdir()):
            raise Refused(
                f"{self.folder} is not empty",
                code="FOLDER_IN_USE",
                hint="name a new or empty directory",
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            shutil.copyfile(Path(__file__).parent / name, self.folder / name)
        if self.store is not None:
            self._use_store()

    def _use_store(self) -> None:
        if not (self.store or "").startswith(("postgresql://", "postgres://")):
            raise Refused(
                "the demo runs on its own SQLite file or on PostgreSQL, not on other stores",
                code="DEMO_STORE",
                hint="perdure demo --store postgresql://…/an_empty_database",
            )
        config = self.folder / "perdure.yaml"
        config.write_text(
            config.read_text("utf-8").replace(_SQLITE_STORE, _POSTGRES_STORE), "utf-8"
        )

        async def main(runtime: Runtime) -> None:
            with suppress(NotFound):
                await runtime.session(SESSION).get()
                raise Refused(
                    f"the database already has a session {SESSION}",
                    code="DEMO_STORE",
                    hint="name another database, or another schema: ?schema=demo2",
                )

        Runtime(self.url).run_sync(main)

    @property
    def url(self) -> str:
        """URL of the store."""
        return self.store or f"sqlite:///{self.folder / 'perdure.db'}"

    @property
    def script_log(self) -> Path:
        return self.folder / "script.log"

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the values in a file of JSON lines, none if it does not exist."""
        file = self.folder / name
        return [json.loads(text) for text in file.read_text().splitlines()] if file.exists() else []

    # --- processes ----------------------------------------------------------------------------

    def _environ(self) -> dict[str, str]:
        own = {"PERDURE_LEASE": LEASE, "PERDURE_SCRIPT_LOG": str(self.script_log)}
        if self.store is not None:
            own["PERDURE_DEMO_STORE"] = self.store
        return {**os.environ, **own, "PYTHONUTF8": "1", "NO_COLOR": "1"}

    def run_command(self, *words: str) -> str:
        """Run a command as a user would, and return its output."""
        done = subprocess.run(  # noqa: S603 - our own program and arguments
            [sys.executable, "-m", "perdure.cli", *words],
            cwd=self.folder,
            env=self._environ(),
            capture_output=True,
            encoding="utf-8",
            timeout=PATIENCE_S,
            check=False,
        )
        if done.returncode != 0:
            raise PerdureError(
                f"perdure {' '.join(words)} exited with {done.returncode}: {done.stderr.strip()}",
                code="DEMO_FAILED",
            )
        return done.stdout

    def start_worker(self) -> int:
        """Start a worker process, and return its number."""
        number = len(self.workers) + 1
        with self._worker_log(number).open("wb") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "perdure.cli", "worker"],
                cwd=self.folder,
                env=self._environ(),
                stdout=log,
                stderr=log,
            )
        self.workers.append(worker)
        return number

    def _worker_log(self, number: int) -> Path:
        return self.folder / f"worker-{number}.log"

    def first_log_line(self, number: int) -> str:
        """Wait for the first line that a worker logs, and return it."""
        text = self.wait_for(
            f"worker {number} logged its first line",
            lambda: self._worker_log(number).read_text("utf-8").partition("\n"),
            lambda parts: bool(parts[1]),
        )
        return text[0]

    def worker_number(self, pid: int) -> int:
        """Return the number of the worker with this process id."""
        return 1 + [worker.pid for worker in self.workers].index(pid)

    @property
    def alive(self) -> list[int]:
        """Numbers of the workers that run."""
        return [n for n, worker in enumerate(self.workers, 1) if worker.poll() is None]

    def kill(self, number: int) -> None:
        """Kill a worker with SIGKILL, so that it cannot finish or release anything."""
        self.workers[number - 1].kill()
        self.workers[number - 1].wait()

    def stop(self, number: int) -> int:
        """Stop a worker with SIGTERM, and return its exit code."""
        self.workers[number - 1].terminate()
        return self.workers[number - 1].wait(PATIENCE_S)

    def close(self) -> None:
        """Kill the workers that still run."""
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()

    # --- waiting ------------------------------------------------------------------------------

    def snapshot(self) -> DemoSnapshot:
        """Return the session as it stands."""
        return self.wait_for_session("the session existed", lambda _: True)

    def wait_for_session(
        self, condition: str, test: Callable[[DemoSnapshot], bool]
    ) -> DemoSnapshot:
        """Wait until the session passes the test, and return it."""

        async def main(runtime: Runtime) -> DemoSnapshot:
            session = runtime.session(SESSION)
            with anyio.move_on_after(PATIENCE_S):
                while True:
                    session_json = (await session.get()).to_json()
                    log = [event.to_json() for event in await session.events()]
                    picture = DemoSnapshot(session_json, log)
                    if test(picture):
                        return picture
                    await anyio.sleep(0.05)
            raise self._timeout_error(condition)

        return Runtime(self.url).run_sync(main)

    def wait_for_line(self, name: str, tool: str, nth: int = 1) -> dict[str, Any]:
        """Wait for the nth line about a tool in a file of JSON lines, and return it."""

        def about() -> list[dict[str, Any]]:
            return [entry for entry in self.lines(name) if entry["tool"] == tool]

        return self.wait_for(f"{name} tells of {tool}", about, lambda entries: len(entries) >= nth)[
            nth - 1
        ]

    def wait_for(self, condition: str, get: Callable[[], T], test: Callable[[T], bool]) -> T:
        """Wait until a value passes the test, and return it."""

        async def main() -> T:
            with anyio.move_on_after(PATIENCE_S):
                while True:
                    value = get()
                    if test(value):
                        return value
                    await anyio.sleep(0.05)
            raise self._timeout_error(condition)

        return anyio.run(main)

    def _timeout_error(self, condition: str) -> PerdureError:
        log = self._worker_log(len(self.workers))
        tail = log.read_text("utf-8")[-500:] if log.exists() else ""
        return PerdureError(
            f"the demo gave up: it took more than {PATIENCE_S:g} s until {condition}",
            code="DEMO_FAILED",
            hint=" ".join(tail.split()) or None,
        )
