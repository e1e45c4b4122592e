"""Time to resume a session with a long history, compared with only reading and decoding it."""

import re
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import anyio
from bench.envs import ENVS
from bench.peers import perdure_peer
from bench.peers.common import Story
from bench.report import Section, Table, number

from perdure.core.log import codec
from perdure.store.base import Record, Write
from perdure.store.sqlite.packed_data import unpack
from perdure.store.sqlite.store import SqliteStore

MESSAGES = (2_000, 20_000)
SAMPLES = 7
RUN_EVENTS = 4  # user, agent_start, assistant, agent_complete
BATCH = 1_000
SESSION = "session"

METHOD = """\
A new Runtime, with empty caches, sends one more message to a session of messages of 1,000 bytes.
"Resume" is the time from that call to the model request with the full history, including two
commits; "read and decode" reads the same rows with a bare connection and decodes them. Medians."""


def measure(*, quick: bool = False) -> Section:
    """Measure both lengths; `quick` uses a tenth of them."""
    lengths = tuple(count // 10 for count in MESSAGES) if quick else MESSAGES
    times = {count: anyio.run(_measure, count) for count in lengths}
    rows = [
        [f"{count:,} messages", number(resume), number(read), f"{resume / read:.1f} x"]
        for count, (resume, read) in times.items()
    ]
    short, long = (times[count][0] for count in lengths)
    ratio = times[lengths[0]][0] / times[lengths[0]][1]
    verdicts = (
        f"- {lengths[0]:,} messages: {ratio:.1f} x read and decode; target ≤ 5 x: "
        f"{'met' if ratio <= 5 else 'missed'}\n"
        f"- ten times the messages take {long / short:.1f} x the time; linear is ≤ 11 x: "
        f"{'met' if long / short <= 11 else 'missed'}"
    )
    table = Table(["", "resume, ms", "read and decode, ms", "ratio"], rows)
    return Section("Resuming a long session", [METHOD, table, verdicts])


async def _measure(messages: int) -> tuple[float, float]:
    ENVS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="resume-", dir=ENVS) as name:
        folder = Path(name)
        await _build(folder, messages)
        resumes = [await _resume(folder) for _ in range(SAMPLES)]
        reads = [_time(lambda: _read(folder)) for _ in range(SAMPLES)]
    return statistics.median(resumes) * 1000, statistics.median(reads) * 1000


async def _resume(folder: Path) -> float:
    story = Story(())
    async with perdure_peer.open_peer(folder, story, "") as peer:
        began = time.perf_counter()
        await peer.talk(SESSION)
    return story.requested_at - began


def _read(folder: Path) -> None:
    db = sqlite3.connect(folder / "perdure.db")
    rows = db.execute("select seq, type, at, data from record order by sid, seq").fetchall()
    before: bytes | None = None
    for _, kind, _, data in rows:
        before = unpack(data, before=before) or b""
        codec.decode(kind, before)
    db.close()


def _time(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


async def _build(folder: Path, messages: int) -> None:
    """Run two real turns, then repeat the records of the second as later turns."""
    async with perdure_peer.open_peer(folder, Story(()), "") as peer:
        await peer.talk(SESSION)
        await peer.talk(SESSION)
    store = SqliteStore(folder / "perdure.db")
    await store.open()
    try:
        stream = (await store.tail("0")).records[0].stream
        last = (await store.read(stream)).records[-RUN_EVENTS:]
        later = [renumber(record, turn) for turn in range(3, messages // 2 + 1) for record in last]
        for start in range(0, len(later), BATCH):
            await store.commit([Write(stream, later[start : start + BATCH])])
    finally:
        await store.close()


def renumber(record: Record, turn: int) -> Record:
    """Return a record of turn 2 as the corresponding record of a later turn."""
    text = record.data.decode()
    text = re.sub(r'"turn":2\b', f'"turn":{turn}', text)
    head = RUN_EVENTS * (turn - 1) + 1
    text = re.sub(r'"requestHead":\d+', f'"requestHead":{head}', text)
    text = re.sub(r'"((?:task)_[0-9A-Z]{20})[0-9A-Z]{6}"', rf'"\g<1>{turn:06d}"', text)
    return Record(record.type, text.encode())
