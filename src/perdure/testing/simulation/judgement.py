"""Judgement of what is left when a simulated fleet has come to rest."""

from collections import Counter
from collections.abc import Container, Iterator
from typing import Any, Final

import msgspec

from perdure.store.base import Entry
from perdure.store.memory import MemoryStore
from perdure.testing.simulation.log import RawLog, RawRecord, session_of
from perdure.testing.simulation.oracle import Oracle
from perdure.testing.simulation.store import completed

Found = Iterator[tuple[str, str]]  # a guarantee, and how it was broken

ENDS: Final = {"agent_complete": "completed", "agent_error": "failed", "cancelled": "cancelled"}
MOVING: Final = ("pending", "running")
_STARTS: Final = ("agent_start", "tool_started", "agent_changed", "retry")
_PAGE: Final = 50  # records of the feed


def judge(oracle: Oracle, memory: MemoryStore, *, has_one_clock: bool) -> None:
    """Add what logs, entries and the feed at the end say; deadlines only if no clock was set."""
    judge_logs(oracle, has_one_clock=has_one_clock)
    _check_entries(oracle, memory)
    _check_mail(oracle, memory)
    if [*_feed(memory)] != oracle.feed:
        oracle.find("G9", "", "the feed is not the records in the order of their commits")


def judge_logs(oracle: Oracle, *, has_one_clock: bool) -> None:
    """Add what the logs at the end say."""
    for stream, log in oracle.logs.items():
        checks = (_turns, _calls, _epochs, _cancels, _runs, _growth, _keys, _decisions)
        for check in checks:
            for guarantee, text in check(log):
                oracle.find(guarantee, session_of(stream), text, log)
        if has_one_clock:
            for text in _early_expiries(log):
                oracle.find("G9", session_of(stream), text, log)
    for mail, number in _delivered(oracle).items():
        if number > 1:
            oracle.find("G9", "", f"mail {mail} was delivered {number} times")


def _turns(log: RawLog) -> Found:
    turns = [data["turn"] for data in log.of("assistant")]
    if turns != list(range(1, len(turns) + 1)):
        yield "G2", f"the turns are {turns}"


def _calls(log: RawLog) -> Found:
    calls = {data["id"]: data["tool"] for data in log.of("tool_call")}
    results = Counter(d["toolCallId"] for d in log.of("tool_result") if not d.get("replaces"))
    for call, number in results.items():
        if call not in calls:
            yield "G4", f"call {call} has a result and was never requested"
        elif number > 1:
            yield "G4", f"{calls[call]} (call {call}) has {number} results"
    if log.is_over and not log.is_fork and not any(log.of("agent_error", "cancelled")):
        for call in calls.keys() - results.keys():
            yield "G9", f"{calls[call]} (call {call}) has no result, and the run is over"


def _epochs(log: RawLog) -> Found:
    epochs = [data["epoch"] for data in log.of("tool_started")]
    if epochs != sorted(epochs):
        yield "G5", f"tools started under the epochs {epochs}"


def _cancels(log: RawLog) -> Found:
    is_cancelled = False
    for row in log:
        is_cancelled = row.type == "cancelled" or (is_cancelled and row.type != "user")
        if is_cancelled and row.type == "tool_started":
            yield "G5", f"call {row.data['id']} starts after the run was cancelled"


def _runs(log: RawLog) -> Found:
    """A message belongs to the run that is under way, or starts another after its end."""
    run, is_over = None, True
    for row in log:
        task = row.data.get("taskID")
        if row.type == "user" and is_over is (task == run):
            yield "G9", f"a message belongs to run {task}, and the last one was {run}"
        run = task if row.type == "user" else run
        is_over = row.type in (*ENDS, "forked") or (is_over and row.type != "user")


def _growth(log: RawLog) -> Found:
    """Drives leave a record of their start only with something else, and a call few records."""
    starts = sum(row.type == "agent_start" for row in log)
    if starts > len(log) - sum(row.type in _STARTS for row in log) + _attempts(log):
        yield "G10", f"{starts} starts of drives in a log of {len(log)} records"
    per_call = Counter(d["callID"] for d in log.of("pending", "settled") if d.get("callID"))
    for call, number in per_call.items():
        if number > 12 + 2 * _attempts(log):
            yield "G10", f"call {call} has {number} records of what it waits for"


def _attempts(log: RawLog) -> int:
    return sum(row.type in ("tool_started", "retry") for row in log)


def _keys(log: RawLog) -> Found:
    keys = Counter(data["key"] for data in log.of("user") if data.get("key"))
    for key, number in keys.items():
        if number > 1:
            yield "G1", f"the message with key {key} is recorded {number} times"


def _decisions(log: RawLog) -> Found:
    decided = Counter(data["pendingID"] for data in log.of("decision"))
    for pending in log.of("pending"):
        if pending["kind"] == "approval" and decided[pending["pendingID"]] > 1:
            number = decided[pending["pendingID"]]
            yield "G4", f"the approval of {pending['tool']} has {number} decisions"


def _early_expiries(log: RawLog) -> Iterator[str]:
    deadlines: dict[str, int] = {}
    for row in log:
        data = row.data
        if row.type in ("pending", "progress") and data.get("expiresAt") is not None:
            deadlines[data["pendingID"]] = data["expiresAt"]
        if row.type == "settled" and data["status"] == "expired":
            deadline = deadlines.get(data["pendingID"], 0)
            if not 0 < deadline <= row.at:
                yield f"call {data['callID']} expired at {row.at}, its deadline is {deadline}"


# --- entries --------------------------------------------------------------------------------------


def session_entries(memory: MemoryStore) -> Iterator[tuple[Entry, dict[str, Any]]]:
    """Yield the entries of sessions with their data, the defaults of the state included."""
    for entry in memory._tables.entries.get("session", {}).values():  # noqa: SLF001 - at one moment
        yield entry, {"state": "pending", "head": 0, "turns": 0, **msgspec.json.decode(entry.data)}


def is_at_rest(memory: MemoryStore, within_ms: int) -> bool:
    """Return whether no session moves, or will within this time."""
    tables, soon = memory._tables, memory.now() + within_ms  # noqa: SLF001 - at one moment
    for entry, data in session_entries(memory):
        row = tables.streams[entry.stream]
        is_due = row.due is not None and row.due <= soon
        if not row.gone and (row.holder is not None or is_due or data["state"] in MOVING):
            return False
    return True


def _check_entries(oracle: Oracle, memory: MemoryStore) -> None:
    for entry, data in session_entries(memory):
        log, session = oracle.logs.get(entry.stream, RawLog()), session_of(entry.stream)
        row = memory._tables.streams[entry.stream]  # noqa: SLF001 - at one moment
        if row.gone:
            continue
        for text in _entry_differences(data, log):
            oracle.find("G9", session, text, log)
        if row.holder is not None:
            oracle.find("G9", session, f"{row.holder} holds it, and nothing moves", log)
    for entry in memory._tables.entries.get("pending", {}).values():  # noqa: SLF001
        log = oracle.logs.get(entry.stream, RawLog())
        call = msgspec.json.decode(entry.data).get("callID", "")
        if entry.state == "open" and call and log.of_call(call, "tool_result"):
            text = f"call {call} has a result, and its entry is open"
            oracle.find("G4", session_of(entry.stream), text, log)
        elif entry.state == "open" and log.is_over:
            text = f"the run is over, and call {call} is still open"
            oracle.find("G9", session_of(entry.stream), text, log)


def _entry_differences(data: dict[str, Any], log: RawLog) -> Iterator[str]:
    state, head = data["state"], data["head"]
    ends = [ENDS.get(row.type) for row in log if row.type in ("user", *ENDS)]
    end = ends[-1] if ends else None
    if state in MOVING:
        if log.is_over or not log.is_fork:  # a fork waits for its first message
            yield f"it rests as {state} (problem: {data.get('problem')})"
    elif state != (end or "waiting"):
        yield f"its entry says {state}, and its log {end or 'has no end'}"
    if head > len(log):
        yield f"its entry knows {head} records, and its log has {len(log)}"
    if state == "completed":  # by its driver: a cancel, and a vote, change the log only
        yield from _differences_at_the_end(data, log)
    for name in {*data.get("waiting", ())} - {call["pendingID"] for call in log.open_calls()}:
        yield f"its entry waits for {name}, and its log does not"


def _differences_at_the_end(data: dict[str, Any], log: RawLog) -> Iterator[str]:
    """Yield what the entry of a session that has completed a run says, and its log does not."""
    # What was cancelled, or taken by a caller, needs nothing of the parent's driver.
    with_callers = {mail for item in log.of("mail_taken") for mail in item["mail"]}
    last = max(seq for seq, row in enumerate(log, 1) if not _is_for_others(row, with_callers))
    if data["head"] < last:
        yield f"its entry knows {data['head']} records, and its log has {len(log)}"
    turns = sum(row.type == "assistant" for row in log)
    if data["turns"] != turns:
        yield f"its entry counts {data['turns']} turns, and its log {turns}"
    tokens = sum(row.data.get("usage", {}).get("inputTokens", 0) for row in log)
    counted = data.get("usage", {}).get("inputTokens", 0)
    if counted != tokens:
        yield f"its entry counts {counted:.0f} tokens of requests, and its log {tokens}"
    run = [*log.of("agent_complete")][-1]["run"]
    if data.get("taskID") != run:
        yield f"its entry names run {data.get('taskID')}, and its log {run}"


def _is_for_others(row: RawRecord, mails: Container[str]) -> bool:
    """Return whether a record tells the parent of a child nothing that it has to act on."""
    if row.type == "delegation_complete":
        mail = f"{row.data['taskID']}.{row.data.get('number', 1)}"
        return row.data["status"] == "cancelled" or mail in mails
    return row.type == "mail_taken"


def _delivered(oracle: Oracle) -> Counter[str]:
    logs = [log for log in oracle.logs.values() if not log.is_fork]
    rows = [data for log in logs for data in log.of("user", "tool_result", "mail_taken")]
    return Counter(mail for data in rows for mail in data.get("mail", ()))


def _feed(memory: MemoryStore) -> Iterator[tuple[str, int]]:
    """Yield stream and seq of each record, as a reader gets them page by page."""
    completed(memory.open())  # a story's check has closed it
    page = completed(memory.tail("", _PAGE))
    while page.records:
        yield from ((record.stream, record.seq) for record in page.records)
        page = completed(memory.tail(page.cursor, _PAGE))


def _check_mail(oracle: Oracle, memory: MemoryStore) -> None:
    states = {entry.stream: data["state"] for entry, data in session_entries(memory)}
    for entry in memory._tables.entries.get("mail", {}).values():  # noqa: SLF001
        if entry.state == "open" and states.get(entry.stream) == "completed":
            text = f"mail {entry.key} is not delivered"
            oracle.find("G9", session_of(entry.stream), text, oracle.logs.get(entry.stream))
