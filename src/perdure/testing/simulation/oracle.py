"""Oracle of a simulated fleet: it stands outside and compares events with guarantees.

It sees raw records, commits with their processes, claims, effects, and the replies that callers
got. It shares no code with the engine.
"""

from collections import Counter
from functools import partial
from typing import Any, Final, NamedTuple

from perdure.runtime.probes import ModelAsked, Probe, ToolRun
from perdure.store.base import Heads, Lease, Write
from perdure.store.memory import MemoryStore
from perdure.testing.simulation.log import RawLog, decoded, session_name, session_of
from perdure.testing.simulation.loop import Process

GUARANTEES: Final = {
    "G1": "what was acknowledged is recorded, once",
    "G2": "a recorded turn is not requested again",
    "G3": "an effect has a committed intent, and runs at most once",
    "G4": "a call has one outcome",
    "G5": "only the last claimer of a session drives it",
    "G7": "a gated call runs as it was approved",
    "G9": "nothing is stuck, expires early, or is delivered twice",
    "G10": "records grow with content, not with crashes",
}

APPROVED: Final = ("approve", "edit")


class Problem(NamedTuple):
    """A guarantee that was broken, in which session and how."""

    guarantee: str
    session: str
    text: str
    log: str = ""

    def __str__(self) -> str:
        about = GUARANTEES.get(self.guarantee)
        name = f"{self.guarantee} ({about})" if about else self.guarantee
        session = f"session {self.session}: " if self.session else ""
        return f"{name}: {session}{self.text}" + (f"\n  its log:\n{self.log}" if self.log else "")


class LastClaim(NamedTuple):
    """Last claim of a stream."""

    holder: str
    epoch: int


class Effect(NamedTuple):
    """Call of a tool, as the outside world saw it."""

    session: str
    call: str
    effect: str
    tool: str


class Oracle:
    """Everything that was seen from outside, and the problems found so far."""

    def __init__(self, memory: MemoryStore) -> None:
        self.problems: list[Problem] = []
        self.logs: dict[str, RawLog] = {}  # by stream; of erased ones none
        self.feed: list[tuple[str, int]] = []  # stream and seq of each record, in order
        self.effects: list[Effect] = []
        self.erased: set[str] = set()  # names of sessions
        self.erased_tasks: set[str] = set()  # ids of launched tasks
        self._memory = memory
        self._claims: dict[str, LastClaim] = {}
        self._claimers: dict[tuple[str, int, str], int] = {}  # start by stream, epoch and holder
        self._runs: Counter[tuple[Any, ...]] = Counter()
        self._heads: Counter[str] = Counter()  # number of records, by stream

    def find(self, guarantee: str, session: str, text: str, log: RawLog | None = None) -> None:
        """Note a problem, once."""
        shown = "" if log is None else str(log)
        if all(item[:3] != (guarantee, session, text) for item in self.problems):
            self.problems.append(Problem(guarantee, session, text, shown))

    def log(self, session: str) -> RawLog:
        """Return the log of a session as it is now."""
        stream = self.stream(session)
        return self.logs.get(stream, RawLog())

    def stream(self, session: str) -> str:
        """Return the stream of a session; "" if there is none."""
        streams = [name for name in self.logs if session_of(name) == session]
        return streams[-1] if streams else ""

    # --- at the store -----------------------------------------------------------------------------

    def operated(self, process: Process, operation: partial[Any], result: Any) -> None:
        """Note an operation that the store has performed for a process."""
        match operation.func.__name__:
            case "commit":
                self._commit(process, operation.args[0], result)
            case "claim":
                self._claim(process, result)
            case _:
                pass

    def _claim(self, process: Process, leases: list[Lease]) -> None:
        for lease in leases:
            self._claims[lease.stream] = LastClaim(lease.holder, lease.epoch)
            self._claimers[lease.stream, lease.epoch, lease.holder] = id(process)

    def _commit(self, process: Process, writes: list[Write], heads: Heads) -> None:
        for write in writes:
            fence, last = write.fence, self._claims.get(write.stream)
            if fence is not None and last not in (None, (fence.holder, fence.epoch)):
                name = session_of(write.stream)
                text = f"{process} has written under epoch {fence.epoch}; the last claim is {last}"
                self.find("G5", name, text, self.logs.get(write.stream))
            if write.erase:
                self.erased.add(session_of(write.stream))
                log = self.logs.pop(write.stream, RawLog())
                self.erased_tasks |= {data["taskID"] for data in log.of("launched")}
                self.feed = [item for item in self.feed if item[0] != write.stream]
            elif write.records and session_of(write.stream):
                log = self.logs.setdefault(write.stream, RawLog())
                log += [decoded(record, process.name, id(process)) for record in write.records]
            for _ in write.records:
                self._heads[write.stream] += 1
                self.feed.append((write.stream, self._heads[write.stream]))
        self._claim(process, list(heads.leases.values()))

    def holds(self, process: Process, stream: str) -> bool:
        """Return whether a process was the last to claim a stream, and nobody has reaped it."""
        row = self._memory._tables.streams.get(stream)  # noqa: SLF001 - without an operation
        if row is None or row.holder is None:
            return False
        return self._claimers.get((stream, row.epoch, row.holder)) == id(process)

    # --- effects ----------------------------------------------------------------------------------

    def probed(self, process: Process, probe: Probe) -> None:
        """Note a model request or a tool run, at the instant at which it begins."""
        session = session_name(probe.tenant, probe.session_id)
        stream = self.stream(session)
        if not stream or session in self.erased:
            return
        if isinstance(probe, ModelAsked):
            self._check_request(process, probe, session, stream)
        else:
            self._ran(process, probe, session, stream)

    def _check_request(
        self, process: Process, probe: ModelAsked, session: str, stream: str
    ) -> None:
        log = self.logs[stream]
        is_recorded = any(data["turn"] == probe.turn for data in log.of("assistant"))
        # A frozen process may request a turn that its successor has recorded: it can write nothing.
        if not probe.up_to and is_recorded and self.holds(process, stream):
            self.find("G2", session, f"turn {probe.turn} is recorded and was requested again", log)

    def _ran(self, process: Process, run: ToolRun, session: str, stream: str) -> None:
        log, run_text = self.logs[stream], f"{run.tool} (call {run.call_id})"
        self.effects.append(Effect(session, run.call_id, run.effect_id, run.tool))
        intents = [row for row in log if row.type == "tool_started"]
        intents = [row for row in intents if row.data["effectID"] == run.effect_id]
        if not intents:
            self.find("G3", session, f"{run_text} runs without a committed intent", log)
        elif all(row.start != id(process) for row in intents):
            text = f"{run_text} runs in {process}, and {intents[-1].process} committed its intent"
            self.find("G3", session, text, log)
        if not self.holds(process, stream):
            self.find("G5", session, f"{run_text} starts in {process}, which lost its lease", log)
        number = (session, run.call_id, run.effect_id, run.replies)
        self._runs[number] += 1
        if self._runs[number] > 1 and not run.may_repeat:
            text = f"{run_text} ran {self._runs[number]} times; it is not declared idempotent"
            self.find("G3", session, text, log)
        self._check_approval(run, session, log, run_text)

    def _check_approval(self, run: ToolRun, session: str, log: RawLog, run_text: str) -> None:
        gates = [
            gate
            for gate in log.of_call(run.call_id, "pending")
            if gate["kind"] == "approval" and not gate.get("reason")
        ]
        if not gates:
            return
        approvals = [
            data for data in log.of_call(run.call_id, "decision") if data["kind"] in APPROVED
        ]
        if not approvals:
            self.find("G7", session, f"{run_text} runs without an approval", log)
        voters = {data["by"] for data in (*approvals, *log.of_call(run.call_id, "vote"))}
        needed = (gates[0].get("policy") or {}).get("minApprovals", 1)
        if len(voters) < needed:
            text = f"{run_text} runs with {len(voters)} of {needed} votes"
            self.find("G7", session, text, log)
