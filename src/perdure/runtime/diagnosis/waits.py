"""Calls for which a background agent waits: as JSON, and in words that say who decides where."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from perdure.core.pending.record import NO_POLICY, PendingRecord
from perdure.runtime.diagnosis.calls import pending_steps
from perdure.runtime.diagnosis.commands import Commands, PlainCommands
from perdure.runtime.diagnosis.texts import line

Json = dict[str, Any]

WAITING_FOR: Final = "waitingFor"
_LONGEST_PROMPT: Final = 200


def waiting_fields(records: Iterable[PendingRecord]) -> Json:
    """Return `{waitingFor: […]}` for calls that wait for an approver; nothing without any."""
    rows = [waiting_row(record) for record in records]
    return {WAITING_FOR: rows} if rows else {}


def waiting_row(record: PendingRecord) -> Json:
    """Return what everyone who sees a task may know of a call: no argument beside its prompt."""
    policy = record.policy or NO_POLICY
    return {
        "pendingID": record.id,
        "kind": record.kind,
        "tool": record.tool,
        "prompt": record.prompt,
        "approvers": list(policy.approvers),
        "missingApprovals": record.missing_approvals,
    }


def waiting_text(row: Mapping[str, Any]) -> str:
    """Return a predicate such as `waits for ana: approve refund (Refund 42 EUR?)`."""
    names = " or ".join(map(line, row["approvers"])) or "an approver"
    prompt = line(row["prompt"] or "", _LONGEST_PROMPT)
    if row["kind"] == "question":
        return f'waits for {names}: answer "{prompt or line(row["tool"])}"'
    missing = row["missingApprovals"]
    number = f", {missing} approvals" if missing > 1 else ""
    return (
        f"waits for {names}: approve {line(row['tool'])}{f' ({prompt})' if prompt else ''}{number}"
    )


def decision_text(row: Mapping[str, Any], commands: Commands, url: str | None = None) -> str:
    """Return where a call is decided: the command, and the address of its page if it is known."""
    call = {"id": row["pendingID"], "kind": row["kind"]}
    command = pending_steps(call, commands)[0].command
    return command if url is None else f"{command}, or {url.rstrip('/')}/pending/{row['pendingID']}"


def waiting_answer(records: Iterable[PendingRecord], url: str | None = None) -> Json:
    """Return `{waitingFor, message}` about a task: who decides each call, and where.

    Nothing without any call.
    """
    fields = waiting_fields(records)
    if not fields:
        return {}
    commands = PlainCommands()
    sentences = [
        f"It {waiting_text(row)}. To decide: {decision_text(row, commands, url)}."
        for row in fields[WAITING_FOR]
    ]
    return {**fields, "message": " ".join(["The task is still running.", *sentences])}
