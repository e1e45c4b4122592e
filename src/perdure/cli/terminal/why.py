"""Why a session does not move, and what to type: the first lines of every picture of one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from perdure.cli.settings import Settings
from perdure.cli.terminal.live import waiting_line
from perdure.cli.terminal.terminal import age, line

Lines = list[str]
Json = Mapping[str, Any]

WORTH_TELLING: Final = 10_000  # ms
_STOPS: Final = {
    "max_tokens": "its last answer was cut off at the limit of tokens (max_tokens)",
    "context_window": "its last answer was cut off at the end of the model's window",
    "refusal": "the model would not go on with its last answer (refusal)",
    "pause_turn": "the provider paused its last answer too often (pause_turn)",
}


@dataclass(frozen=True, slots=True)
class Picture:
    """A session as it was seen: its JSON, when that was, and whether somebody spoke meanwhile."""

    session: Json
    now: int
    kept: bool = False  # a message that no answer has seen yet

    @classmethod
    def of(cls, session: Json, events: Iterable[Json], now: int) -> "Picture":
        """The picture of a session whose whole log is known."""
        spoken = answered = 0
        for event in events:
            if event["type"] == "user":
                spoken = event["seq"]
            elif event["type"] == "assistant":
                answered = event["data"].get("requestHead") or event["seq"]
        return cls(session, now, spoken > answered)

    @property
    def name(self) -> str:
        return f"Session {line(self.session['sessionID'])}"


def why(seen: Picture, settings: Settings) -> Lines:
    """Where the session stands and what moves it."""
    state = seen.session["state"]
    if state == "failed":
        return _failed(seen, settings)
    if state in ("completed", "cancelled"):
        return [f"{seen.name} is {state}.", *_cut(seen, settings), *_summary(seen, settings)]
    if seen.session["problem"] is not None:
        return _stuck(seen, settings)
    return _moving(seen, settings)


def _cut(seen: Picture, settings: Settings) -> Lines:
    """That the last answer is not all that the model had to say."""
    session, told = seen.session, _STOPS.get(seen.session["stop"] or "")
    if told is None:
        return []
    go_on = settings.command("run", session["agent"], "Go on.", "-s", session["sessionID"])
    return [f"  ! {told}.", *_do(("go on", go_on))]


def _summary(seen: Picture, settings: Settings) -> Lines:
    """What became of a summary that was asked for, as long as it is not there."""
    asked = seen.session["compaction"]
    if asked is None:
        return []
    if asked["error"] is not None:
        return [f"  it could not be summarised: {line(asked['error']['error'], 300)}"]
    if seen.session["problem"] is not None:
        return [
            "  a summary was asked for, and nobody drives it (NO_WORKER).",
            *_do(("start one", settings.worker(seen.session["agent"]))),
        ]
    return ["  a summary of it is being made."]


def _moving(seen: Picture, settings: Settings) -> Lines:
    session, name = seen.session, seen.name
    status, due = session["status"], session["nextAt"]
    if session["driver"] is not None:
        worker = line(session["driver"]["worker"])
        if any(call.get("blocking") for call in session["pending"]):
            head = f"{name} waits in place, in worker {worker}: a restart would lose it."
            return [head, *_waits(seen, settings)]
        return [f"{name} is running; worker {worker} drives it.", *_waits(seen, settings)]
    resume = settings.command("sessions", "resume", session["sessionID"])
    if status["type"] == "retry" and due is not None:
        return [
            f"{name} backs off for {age(due - seen.now)}: the model could not be asked.",
            f"  attempt {status['attempt']}: {line(status['message'], 300)}",
            *_do(("at once", resume)),
        ]
    if session["pending"]:
        count = len(session["pending"])
        calls = "1 call" if count == 1 else f"{count} calls"
        head = f"{name} waits for {calls}. It is saved; nothing needs to keep running."
        kept = ["What was said meanwhile is kept until then."] if seen.kept else []
        return [head, *_waits(seen, settings), *kept]
    if session["state"] == "pending" and due is None:
        return [f"{name} is a fork that nobody has gone on with.", *_do(("go on", resume))]
    return [f"{name} is {session['state']}."]


def _failed(seen: Picture, settings: Settings) -> Lines:
    error = seen.session["error"]
    told = [f"{seen.name} failed: {line(error['error'], 500)}" if error else f"{seen.name} failed."]
    if error is not None and error["hint"]:
        told.append(f"  hint: {line(error['hint'], 300)}")
    again = settings.command("sessions", "resume", seen.session["sessionID"])
    return [*told, *_do(("try again", again))]


def _stuck(seen: Picture, settings: Settings) -> Lines:
    session, name, problem = seen.session, seen.name, seen.session["problem"]
    agent = line(session["agent"])
    resume = ("go on here", settings.command("sessions", "resume", session["sessionID"]))
    cancel = ("give it up", settings.command("sessions", "cancel", session["sessionID"]))
    head = f"{name} cannot go on by itself: {line(problem['error'], 300)} ({problem['code']})."
    match problem["code"]:
        case "NO_WORKER":
            head = f"{name} {line(problem['error'].removeprefix('it '), 300)} (NO_WORKER)."
            start_one = ("start one", settings.worker(agent, session["queue"]))
            return [head, *_do(start_one, *([resume] if settings.has_code else []))]
        case "AGENT_UNKNOWN":
            start = f"a worker that has the agent {agent!r}: perdure worker --app MODULE:NAME"
            return [head, *_do(("start", start), cancel)]
        case "MCP_SERVER_DOWN":
            right = ("put right", line(problem["hint"] or "the server", 300))
            return [head, *_do(right, resume, cancel), *_waits(seen, settings)]
        case "START_INTERRUPTED":
            return [head, *_waits(seen, settings)]
        case _:
            fix = "a worker whose agent has this tool, as it was called: it runs what was approved"
            return [head, *_do(("start", fix), cancel), *_waits(seen, settings)]


def _waits(seen: Picture, settings: Settings) -> Lines:
    told: Lines = []
    for call in seen.session["pending"]:
        shown = waiting_line(call, call["timeout"], seen.now)
        since = seen.now - call["time"]["created"]
        told.append(
            f"  {shown}" + (f", waiting for {age(since)}" if since >= WORTH_TELLING else "")
        )
        if call.get("problem"):
            told.append(f"      {call['problem']}: it may or may not have begun outside")
        told += [f"    {text}" for text in commands_for(call, settings)]
    return told


def commands_for(call: Json, settings: Settings) -> Lines:
    """What one can type about a call that waits."""
    made = settings.command
    cancel = ("cancel", made("pending", "cancel", call["id"]))
    match call["kind"]:
        case "approval":
            first = [("approve", made("approve", call["id"])), ("deny", made("deny", call["id"]))]
            return _do(*first)
        case "question":
            return _do(("answer", made("pending", "respond", call["id"], "--output", "…")))
        case "tool":
            result = made("pending", "result", call["id"], "--output", "…")
            return _do(("result", result), cancel)
        case _:
            return _do(cancel)


def _do(*steps: tuple[str, str]) -> Lines:
    width = max(len(name) for name, _ in steps)
    return [f"  {name.ljust(width)}   {command}" for name, command in steps]
