"""Steps of findings: commands without the options of a store, and the requests that do the same."""

import shlex
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final
from urllib.parse import quote

from perdure.core.session.queues import DEFAULT
from perdure.views.findings import Finding, Step
from perdure.views.literals import Act, CallKind

NO_WORKER: Final = "NO_WORKER"  # the code of what waits for a worker
OUTPUT: Final = ("--output", "…")
_quoted: Final = lru_cache(maxsize=4096)(shlex.quote)  # every row of a list has the same words
_LABELS: Final[dict[CallKind, tuple[Act, ...]]] = {
    "approval": ("approve", "edit", "deny", "respond", "cancel"),
    "question": ("respond", "cancel"),
    "tool": ("result", "cancel"),
    "child": ("cancel",),
    "timer": ("cancel",),
}


def command(*words: str, tenant: str = "") -> str:
    """Return a command; readers add the options that reach their store."""
    return " ".join(map(_quoted, ("perdure", *words, *(("--tenant", tenant) if tenant else ()))))


def step(
    label: str, *words: str, tenant: str = "", path: str | None = None, method: str = "POST"
) -> Step:
    """Return a step, with the request to a path that does the same."""
    request = None if path is None else method
    return Step(label=label, command=command(*words, tenant=tenant), method=request, path=path)


def session_step(label: str, verb: str, session_id: str, tenant: str) -> Step:
    """Return the step that resumes or cancels a session."""
    query = f"?tenant={quote(tenant, safe='')}" if tenant else ""
    path = f"/sessions/{quote(session_id, safe='')}/{verb}{query}"
    return step(label, "sessions", verb, session_id, tenant=tenant, path=path)


def here_step(session_id: str, tenant: str) -> Step:
    """Return the step that drives a session in the process that is asked to."""
    return step("continue here", "sessions", "resume", session_id, tenant=tenant)


def worker_step(queue: str = DEFAULT) -> Step:
    """Return the step that starts a worker for a queue."""
    option = () if queue == DEFAULT else ("--queue", queue)
    return step("start a worker", "worker", *option)


def call_steps(
    pending_id: str, kind: CallKind, can: Iterable[Act], changes: Iterable[str] = ()
) -> tuple[Step, ...]:
    """Return the steps that settle a call, of those that the caller can take.

    Where it can be approved as it is, nothing else than denying it is listed; `changes` names the
    arguments that an approver must change.
    """
    acts = {act for act in can if act in _LABELS[kind]}
    if "approve" in acts:
        acts -= {"edit", "respond"} | ({"cancel"} if kind == "approval" else set())
    elif "edit" in acts and not changes:
        acts.discard("edit")
    if kind == "question" and "respond" in acts:
        acts.discard("cancel")
    path = f"/pending/{quote(pending_id, safe='')}"
    chosen = [act for act in _LABELS[kind] if act in acts]
    return tuple([_call_step(act, pending_id, path, kind, changes) for act in chosen])


def _call_step(
    act: Act, pending_id: str, path: str, kind: CallKind, changes: Iterable[str]
) -> Step:
    match act:
        case "edit":
            settings = [word for name in changes for word in ("--set", f"{name}=…")]
            return step("edit", "approve", pending_id, *settings, path=f"{path}/approve")
        case "respond":
            label = "answer" if kind == "question" else "respond"
            words = ("pending", "respond", pending_id, *OUTPUT)
            return step(label, *words, path=f"{path}/respond")
        case "result":
            words = ("pending", "result", pending_id, *OUTPUT)
            return step("result", *words, path="/async-tool/result")
        case "cancel":
            return step("cancel", "pending", "cancel", pending_id, path=path, method="DELETE")
        case _:
            return step(act, act, pending_id, path=f"{path}/{act}")


# --- as text --------------------------------------------------------------------------------------


def step_lines(steps: Sequence[Step]) -> list[str]:
    """Return steps as lines in two columns."""
    width = max((len(item.label) for item in steps), default=0)
    return [f"  {item.label.ljust(width)}   {item.command}" for item in steps]


def finding_lines(finding: Finding) -> list[str]:
    """Return a finding as lines: its sentence, its notes and its steps."""
    sentence, *notes = finding.text.split("\n")
    return [sentence, *(f"  {note}" for note in notes), *step_lines(finding.steps)]


def call_lines(heading: str, findings: Sequence[Finding]) -> list[str]:
    """Return an open call below its session as lines: why it does not continue, and its steps."""
    lines = [f"  {heading}"]
    for finding in findings:
        if finding.severity != "waiting":
            sentence, *notes = finding.text.split("\n")
            lines += [f"      {finding.code}: {sentence}", *(f"      {note}" for note in notes)]
    return [*lines, *(f"    {text}" for item in findings for text in step_lines(item.steps))]
