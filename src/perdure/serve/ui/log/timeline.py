"""Timeline of a session: lanes with bars for what ran and frames for what waited.

Time is not drawn to scale where nothing happened: a span of more than 30 s between two events is
drawn as wide as any other such span, and labeled with its length.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from perdure.serve.ui.spans import span
from perdure.views.events import Event

Kind = Literal["user", "model", "tool", "error", "child", "person", "machine"]

LONG_MS: Final = 30_000
LEFT: Final = 150  # width of the names of lanes
GAP: Final = 92  # width of every long span
SHORT: Final = 860  # width of everything else together
ROW: Final = 28
TOP: Final = 26
MIN_BAR: Final = 4
_WAITS: Final[Mapping[str, Kind]] = {"approval": "person", "question": "person"}
_WAIT_WORDS: Final = {
    "approval": "approval",
    "question": "answer",
    "tool": "result",
    "child": "child",
    "timer": "timer",
}


class TimelineBar(Struct, frozen=True):
    """Something that ran or waited, in the lane of its name; `end` is None while it is open."""

    lane: str
    kind: Kind
    start: int
    end: int | None
    label: str
    seq: int

    @property
    def is_wait(self) -> bool:
        """True if nothing ran."""
        return self.kind in ("person", "machine")


class Lane(Struct, frozen=True):
    """Row of a timeline; a lane of a child is nested and links to its session."""

    name: str
    y: int
    session_id: str | None = None


class DrawnBar(Struct, frozen=True):
    """Bar with its place in the drawing."""

    bar: TimelineBar
    x: float
    y: int
    width: float
    title: str

    @property
    def label(self) -> str:
        """Its label, if it is wide enough for it."""
        return self.bar.label if self.width >= 9 * len(self.bar.label) * 0.72 + 8 else ""


class DrawnMark(Struct, frozen=True):
    """Labeled place on the axis: a long span, or the moment at which a worker took over."""

    x: float
    width: float
    label: str
    level: int = 0


@dataclass(frozen=True, slots=True)
class Timeline:
    """Drawing of a timeline."""

    lanes: tuple[Lane, ...]
    bars: tuple[DrawnBar, ...]
    gaps: tuple[DrawnMark, ...]
    takeovers: tuple[DrawnMark, ...]
    width: float
    height: int
    ran_ms: int
    people_ms: int
    machines_ms: int

    @property
    def restarts(self) -> int:
        """Number of times that another worker took over."""
        return len(self.takeovers)


@dataclass(slots=True)
class _BarReader:
    """Collects bars while it reads events in order."""

    bars: list[TimelineBar] = field(default_factory=list)
    takeovers: list[tuple[int, str]] = field(default_factory=list)
    tools: dict[str, str] = field(default_factory=dict)  # by call id
    running: dict[str, tuple[int, int]] = field(default_factory=dict)  # by call id: at, seq
    waiting: dict[str, tuple[int, int, str, str]] = field(default_factory=dict)  # by pending id
    children: dict[str, tuple[int, int, str, str]] = field(default_factory=dict)  # by task id
    sessions: dict[str, str] = field(default_factory=dict)  # by lane of a child
    worker: str | None = None
    before: int | None = None  # instant of the previous event

    def read(self, event: Event) -> None:
        handle = _HANDLERS.get(event.type)
        if handle is not None:
            handle(self, event, event.data)
        if event.type != "agent_start":  # it is recorded with the first response of its drive
            self.before = event.at_ms

    def add(
        self, lane: str, kind: Kind, place: tuple[int, int], end: int | None, label: str
    ) -> None:
        self.bars.append(TimelineBar(lane, kind, place[0], end, label, place[1]))

    def end_wait(self, pending_id: str, at: int) -> None:
        wait = self.waiting.pop(pending_id, None)
        if wait is not None:
            start, seq, tool, kind = wait
            self.add(
                tool, _WAITS.get(kind, "machine"), (start, seq), at, _WAIT_WORDS.get(kind, kind)
            )

    def end_open(self) -> None:
        """Draw what has not ended."""
        for call_id, place in self.running.items():
            self.add(self.tools.get(call_id, "tool"), "tool", place, None, "running")
        for start, seq, tool, kind in self.waiting.values():
            self.add(
                tool, _WAITS.get(kind, "machine"), (start, seq), None, _WAIT_WORDS.get(kind, kind)
            )
        for start, seq, lane, _ in self.children.values():
            self.add(lane, "child", (start, seq), None, "running")


def _user(reader: _BarReader, event: Event, _: Mapping[str, Any]) -> None:
    reader.add("user", "user", (event.at_ms, event.seq), event.at_ms, "")


def _assistant(reader: _BarReader, event: Event, _: Mapping[str, Any]) -> None:
    # The log does not hold the start of a model request: draw from the previous event.
    start = event.at_ms if reader.before is None else reader.before
    reader.add("model", "model", (start, event.seq), event.at_ms, "")


def _retry(reader: _BarReader, event: Event, _: Mapping[str, Any]) -> None:
    start = event.at_ms if reader.before is None else reader.before
    reader.add("model", "error", (start, event.seq), event.at_ms, "failed")


def _tool_call(reader: _BarReader, _: Event, data: Mapping[str, Any]) -> None:
    reader.tools[data["id"]] = data["tool"]


def _tool_started(reader: _BarReader, event: Event, data: Mapping[str, Any]) -> None:
    reader.running[data["id"]] = (event.at_ms, event.seq)


def _tool_result(reader: _BarReader, event: Event, data: Mapping[str, Any]) -> None:
    call_id = data["toolCallId"]
    place = reader.running.pop(call_id, None)
    if place is not None:
        kind: Kind = "error" if data.get("isError") else "tool"
        reader.add(reader.tools.get(call_id, "tool"), kind, place, event.at_ms, "")


def _pending(reader: _BarReader, event: Event, data: Mapping[str, Any]) -> None:
    reader.running.pop(data["callID"], None)  # it waits, and does not run
    reader.waiting[data["pendingID"]] = (event.at_ms, event.seq, data["tool"], data["kind"])


def _progress(reader: _BarReader, event: Event, data: Mapping[str, Any]) -> None:
    place = reader.running.pop(data["callID"], None) if data.get("returned") else None
    if place is not None:  # a deferred tool has started its work elsewhere
        reader.add(reader.tools.get(data["callID"], "tool"), "tool", place, event.at_ms, "")


def _settled(reader: _BarReader, event: Event, data: Mapping[str, Any]) -> None:
    reader.end_wait(data["pendingID"], event.at_ms)


def _agent_start(reader: _BarReader, event: Event, data: Mapping[str, Any]) -> None:
    worker = data.get("worker") or ""
    if reader.worker is not None and worker != reader.worker:
        reader.takeovers.append((event.at_ms, worker))
    reader.worker = worker


def _delegation(reader: _BarReader, event: Event, data: Mapping[str, Any]) -> None:
    lane = f"↳ {data['agent']}"
    number = sum(1 for name in reader.sessions if name.startswith(lane))
    lane = f"{lane} {number + 1}" if number else lane
    reader.sessions[lane] = data["sessionID"]
    reader.children[data["taskID"]] = (event.at_ms, event.seq, lane, data["sessionID"])


def _delegation_complete(reader: _BarReader, event: Event, data: Mapping[str, Any]) -> None:
    child = reader.children.pop(data["taskID"], None)
    if child is not None:
        kind: Kind = "child" if data.get("status") == "completed" else "error"
        reader.add(child[2], kind, child[:2], event.at_ms, "")


_HANDLERS: Final = {
    "user": _user,
    "assistant": _assistant,
    "retry": _retry,
    "tool_call": _tool_call,
    "tool_started": _tool_started,
    "tool_result": _tool_result,
    "pending": _pending,
    "progress": _progress,
    "decision": _settled,
    "settled": _settled,
    "agent_start": _agent_start,
    "delegation": _delegation,
    "delegation_complete": _delegation_complete,
}


def draw_timeline(events: Sequence[Event], now: int, *, is_over: bool) -> Timeline:
    """Return the drawing of these events; what has not ended is drawn until now."""
    reader = _BarReader()
    for event in events:
        reader.read(event)
    if not is_over:
        reader.end_open()
    last = max([event.at_ms for event in events], default=now)
    bars = [_closed(bar, last if is_over else max(now, last)) for bar in reader.bars]
    axis = _Axis(bars, [at for at, _ in reader.takeovers])
    names = list(dict.fromkeys(bar.lane for bar in bars))
    order = {"user": 0, "model": 1}
    names.sort(key=lambda name: order.get(name, 3 if name in reader.sessions else 2))
    lanes = tuple(
        Lane(name, TOP + number * ROW, reader.sessions.get(name))
        for number, name in enumerate(names)
    )
    places = {lane.name: lane.y for lane in lanes}
    open_seqs = {bar.seq for bar in reader.bars if bar.end is None}
    drawn = tuple(_drawn(bar, axis, places[bar.lane], is_open=bar.seq in open_seqs) for bar in bars)
    takeovers = _takeover_marks(reader.takeovers, axis)
    height = TOP + len(lanes) * ROW + 12 + 14 * (1 + max([m.level for m in takeovers], default=-1))
    return Timeline(
        lanes,
        drawn,
        axis.gaps,
        takeovers,
        LEFT + axis.width + 10,
        height,
        _covered(bar for bar in bars if bar.kind in ("model", "tool", "error")),
        _covered(bar for bar in bars if bar.kind == "person"),
        _covered(bar for bar in bars if bar.kind == "machine"),
    )


def _closed(bar: TimelineBar, end: int) -> TimelineBar:
    return bar if bar.end is not None else replace(bar, end=end)


def _drawn(bar: TimelineBar, axis: "_Axis", y: int, *, is_open: bool) -> DrawnBar:
    end = bar.start if bar.end is None else bar.end
    x = axis.place(bar.start)
    width = max(axis.place(end) - x, MIN_BAR)
    word = "waits for" if is_open and bar.is_wait else "waited for" if bar.is_wait else "ran"
    subject = f" {bar.label}" if bar.is_wait else ""
    title = f"{bar.lane}: {word}{subject} {span(end - bar.start)}"
    return DrawnBar(bar, x, y, width, "message" if bar.kind == "user" else title)


def _covered(bars: Iterable[TimelineBar]) -> int:
    """Return how long at least one of these bars lasted."""
    total, reached = 0, 0
    for bar in sorted(bars, key=lambda item: item.start):
        end = bar.start if bar.end is None else bar.end
        total += max(end - max(bar.start, reached), 0)
        reached = max(reached, end)
    return total


def _takeover_marks(takeovers: list[tuple[int, str]], axis: "_Axis") -> tuple[DrawnMark, ...]:
    """Return the marks of workers; labels that would overlap go to a lower level."""
    marks: list[DrawnMark] = []
    ends: list[float] = []  # by level: where its last label ends
    for at, worker in takeovers:
        x, label = axis.place(at), f"another worker took over{f': {worker}' if worker else ''}"
        width = 6.2 * len(label)
        level = next((n for n, end in enumerate(ends) if end < x), len(ends))
        ends[level : level + 1] = [x + width]
        marks.append(DrawnMark(x, width, label, level))
    return tuple(marks)


class _Axis:
    """Axis of time: short spans to scale, long ones equally wide."""

    def __init__(self, bars: Sequence[TimelineBar], marks: Sequence[int]) -> None:
        instants = {bar.start for bar in bars} | {bar.end for bar in bars if bar.end is not None}
        self._instants = sorted(instants | set(marks))
        pairs = list(zip(self._instants, self._instants[1:], strict=False))
        short = sum(end - start for start, end in pairs if end - start <= LONG_MS)
        scale = SHORT / short if short else 0.0
        self._places: dict[int, float] = {}
        gaps: list[DrawnMark] = []
        x = float(LEFT)
        for start, end in pairs:
            self._places[start] = x
            is_long = end - start > LONG_MS
            if is_long:
                gaps.append(DrawnMark(x, GAP, span(end - start)))
            x += GAP if is_long else max((end - start) * scale, 1.0)
        if self._instants:
            self._places[self._instants[-1]] = x
        self.gaps = tuple(gaps)
        self.width = max(x - LEFT + MIN_BAR, SHORT)

    def place(self, at: int) -> float:
        """Return the place of an instant at which something began or ended."""
        return round(self._places.get(at, LEFT), 1)
