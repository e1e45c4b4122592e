"""Evidence of a campaign: everything that the oracle judges, as plain data."""

import gzip
import re
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import msgspec
from tests.soak.world import FOLDER, Line, World
from tests.support.paths import ROOT
from tests.support.server import CLI, around

from perdure import NotFound, Runtime
from perdure.core.session.naming import parse_session_stream
from perdure.errors import StoreError
from perdure.store.base import StreamState
from perdure.tasks import MultiLayerPersistence

T = TypeVar("T")

TRACEBACK = "Traceback (most recent call last)"


@dataclass(slots=True)
class Evidence:
    """Records of the processes, and the final logs."""

    seed: str
    has_sandbox: bool = False
    logs: dict[str, list[Line]] = field(default_factory=dict)  # by session
    states: dict[str, str] = field(default_factory=dict)  # by session, in the end
    notes: list[Line] = field(default_factory=list)  # of the clients
    effects: list[Line] = field(default_factory=list)  # of the tools
    intervals: list[Line] = field(default_factory=list)  # of tools in processes that lived on
    naps: list[Line] = field(default_factory=list)  # of frozen processes
    commands: list[str] = field(default_factory=list)  # lines that commands wrote
    checkpoints: set[str] = field(default_factory=set)  # that exist and are whole
    events: list[Line] = field(default_factory=list)  # of the reader
    fenced: int = 0  # writes that the fence refused
    connections: int = 0  # of the reader
    ended: list[str] = field(default_factory=list)  # processes that ended by themselves, or late
    tracebacks: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)  # of `perdure doctor --full`

    def save(self, file: Path) -> None:
        """Write it to a file, compressed."""
        file.write_bytes(gzip.compress(msgspec.json.encode(self), mtime=0))

    @classmethod
    def load(cls, file: Path) -> "Evidence":
        """Return what `save` wrote."""
        return msgspec.json.decode(gzip.decompress(file.read_bytes()), type=cls)


async def collect(world: World, rt: Runtime, *, app: str = "rt") -> Evidence:
    """Return the evidence after all processes have ended."""
    evidence = Evidence(world.seed, world.has_sandbox)
    evidence.notes = world.lines("notes-*")
    evidence.effects, evidence.intervals = world.lines("effects"), world.lines("intervals")
    evidence.naps = world.lines("naps") + _stalls(world)
    evidence.events = world.lines("events")
    evidence.fenced, evidence.connections = map(len, map(world.lines, ("fenced", "connections")))
    evidence.ended = [str(line) for line in world.lines("ended")]
    for stream in await insist(partial(session_streams, rt)):
        _, session = parse_session_stream(stream.stream) or ("", "")
        events = await insist(partial(rt.session(session).events, limit=1_000_000))
        evidence.logs[session] = [event.to_json() for event in events]
        is_idle = stream.due is None and stream.holder is None
        state = (await insist(rt.session(session).get)).state
        evidence.states[session] = state if is_idle else f"{state}, due or held"
    for file in world.tasks.glob("*/workspace/ran"):
        evidence.commands += file.read_text().split()
    evidence.checkpoints = await _whole_checkpoints(rt, evidence.notes)
    evidence.tracebacks = [
        f"{file.name}: {text[:2000]}"
        for file in sorted(world.folder.glob("log-*"))
        for text in file.read_text(errors="replace").split(TRACEBACK)[1:]
    ]
    evidence.findings = _doctor(world, app)
    return evidence


async def _whole_checkpoints(rt: Runtime, notes: list[Line]) -> set[str]:
    layers, whole = MultiLayerPersistence(rt), set()
    for note in notes:
        if note["topic"] == "checkpoint":
            try:
                problems = await layers.verify_checkpoint(note["task"], note["id"])
            except NotFound:
                continue
            whole |= set() if problems else {note["id"]}
    return whole


def _stalls(world: World) -> list[Line]:
    """Return naps of processes that logged a lost lease: the machine was slow."""
    logs = "".join(file.read_text(errors="replace") for file in world.folder.glob("log-*"))
    lost = re.findall(r"-(\d+)-\w+ lost its lease", logs)
    return [{"pid": int(pid), "began": 0, "ended": float("inf")} for pid in lost]


def _doctor(world: World, app: str) -> list[str]:
    """Return the findings of `perdure doctor --full`."""
    done = subprocess.run(
        [*CLI, "doctor", "--full", "--app", f"tests.soak.agents:{app}"],
        cwd=ROOT,
        env=around(**{FOLDER: str(world.folder)}),
        capture_output=True,
        text=True,
        check=False,
    )
    return [] if done.returncode == 0 else (done.stdout + done.stderr).splitlines()


async def session_streams(rt: Runtime) -> list[StreamState]:
    """Return the streams of all sessions."""
    streams: list[StreamState] = []
    page: Sequence[StreamState] | None = None
    while page is None or page:
        page = await rt._resources.store.streams(streams[-1].stream if streams else "")
        streams += page
    return [stream for stream in streams if stream.kind.startswith("session:")]


async def insist(do: Callable[[], Awaitable[T]]) -> T:
    """Retry while the database is unavailable, as a client should."""
    while True:
        try:
            return await do()
        except StoreError:
            await anyio.sleep(0.1)
