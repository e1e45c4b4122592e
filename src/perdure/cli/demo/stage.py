"""The stage of the demo: a project in a directory, real commands, workers that can be killed."""

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
_HERE: Final = "{driver: sqlite, database: ./perdure.db}"
_THERE: Final = '{driver: postgres, database: "${PERDURE_DEMO_STORE}"}'  # it may hold a password


@dataclass(frozen=True, slots=True)
class Picture:
    """The session at one moment."""

    session: dict[str, Any]
    events: list[dict[str, Any]]

    @property
    def waiting(self) -> dict[str, str]:
        """The open pending calls: tool to id."""
        return {one["tool"]: one["id"] for one in self.session["pending"]}


@dataclass(slots=True)
class Stage:
    """One performance."""

    folder: Path
    store: str | None = None  # a database elsewhere
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def build(self) -> None:
        """Put the project there. Refused if the directory is in use."""
        if self.folder.exists() and any(self.folder.iterdir()):
            raise Refused(
                f"{self.folder} is not empty",
                code="FOLDER_IN_USE",
                hint="name a directory that is new or empty",
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            shutil.copyfile(Path(__file__).parent / name, self.folder / name)
        if self.store is not None:
            self._play_there()

    def _play_there(self) -> None:
        if not (self.store or "").startswith(("postgresql://", "postgres://")):
            raise Refused(
                "the demo plays on a file of its own, or on PostgreSQL",
                code="DEMO_STORE",
                hint="perdure demo --store postgresql://…/an_empty_database",
            )
        config = self.folder / "perdure.yaml"
        config.write_text(config.read_text("utf-8").replace(_HERE, _THERE), "utf-8")

        async def main(runtime: Runtime) -> None:
            with suppress(NotFound):
                await runtime.session(SESSION).get()
                raise Refused(
                    f"the session {SESSION} is there already",
                    code="DEMO_STORE",
                    hint="name a database without it, or another schema: ?schema=demo2",
                )

        Runtime(self.url).run_sync(main)

    @property
    def url(self) -> str:
        """Where the session is kept."""
        return self.store or f"sqlite:///{self.folder / 'perdure.db'}"

    @property
    def script_log(self) -> Path:
        return self.folder / "script.log"

    def lines(self, name: str) -> list[dict[str, Any]]:
        """What a file of JSON lines holds; nothing if it is not there."""
        file = self.folder / name
        return [json.loads(one) for one in file.read_text().splitlines()] if file.exists() else []

    # --- processes ----------------------------------------------------------------------------

    def _environ(self) -> dict[str, str]:
        own = {"PERDURE_LEASE": LEASE, "PERDURE_SCRIPT_LOG": str(self.script_log)}
        if self.store is not None:
            own["PERDURE_DEMO_STORE"] = self.store
        return {**os.environ, **own, "PYTHONUTF8": "1", "NO_COLOR": "1"}

    def perdure(self, *words: str) -> str:
        """Run a command as a user would, and answer what it printed."""
        done = subprocess.run(  # noqa: S603 - our own program, our own words
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
        """Start a real worker process; answers its number."""
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

    def first_words(self, number: int) -> str:
        """The first line that a worker logged: what it found."""
        text = self.until(
            f"worker {number} says what it found",
            lambda: self._worker_log(number).read_text("utf-8").partition("\n"),
            lambda parts: bool(parts[1]),
        )
        return text[0]

    def number_of(self, pid: int) -> int:
        """Which worker a process is."""
        return 1 + [worker.pid for worker in self.workers].index(pid)

    @property
    def alive(self) -> list[int]:
        """The workers that run."""
        return [n for n, worker in enumerate(self.workers, 1) if worker.poll() is None]

    def kill(self, number: int) -> None:
        """SIGKILL: the worker cannot say good-bye, nor finish anything."""
        self.workers[number - 1].kill()
        self.workers[number - 1].wait()

    def stop(self, number: int) -> int:
        """SIGTERM, as any supervisor does; answers the exit code."""
        self.workers[number - 1].terminate()
        return self.workers[number - 1].wait(PATIENCE_S)

    def close(self) -> None:
        """Leave no process behind."""
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()

    # --- looking ------------------------------------------------------------------------------

    def look(self) -> Picture:
        """The session as it stands."""
        return self.until_session("the session is there", lambda _: True)

    def until_session(self, what: str, test: Callable[[Picture], bool]) -> Picture:
        """Wait until the session looks like that."""

        async def main(runtime: Runtime) -> Picture:
            session = runtime.session(SESSION)
            with anyio.move_on_after(PATIENCE_S):
                while True:
                    shown = (await session.get()).to_json()
                    log = [event.to_json() for event in await session.events()]
                    picture = Picture(shown, log)
                    if test(picture):
                        return picture
                    await anyio.sleep(0.05)
            raise self._too_long(what)

        return Runtime(self.url).run_sync(main)

    def until_line(self, name: str, tool: str, nth: int = 1) -> dict[str, Any]:
        """Wait until a file of JSON lines has so many lines about a tool; answers the last."""

        def about() -> list[dict[str, Any]]:
            return [one for one in self.lines(name) if one["tool"] == tool]

        return self.until(f"{name} tells of {tool}", about, lambda found: len(found) >= nth)[
            nth - 1
        ]

    def until(self, what: str, get: Callable[[], T], test: Callable[[T], bool]) -> T:
        """Wait until something else looks like that."""

        async def main() -> T:
            with anyio.move_on_after(PATIENCE_S):
                while True:
                    found = get()
                    if test(found):
                        return found
                    await anyio.sleep(0.05)
            raise self._too_long(what)

        return anyio.run(main)

    def _too_long(self, what: str) -> PerdureError:
        log = self._worker_log(len(self.workers))
        tail = log.read_text("utf-8")[-500:] if log.exists() else ""
        return PerdureError(
            f"waited {PATIENCE_S:g} s in vain until {what}",
            code="DEMO_FAILED",
            hint=" ".join(tail.split()) or None,
        )
