"""Pending calls in one line each, and the steps that settle them."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from perdure.core.pending.record import APPROVER_KINDS
from perdure.runtime.diagnosis.commands import Commands
from perdure.runtime.diagnosis.texts import age, arguments_text, call_text, line, plural


class Step(NamedTuple):
    """Something to do, with the command that does it."""

    label: str
    command: str


Steps = tuple[Step, ...]


def step_lines(steps: Steps) -> list[str]:
    """Return steps as lines in two columns."""
    width = max(len(step.label) for step in steps)
    return [f"  {step.label.ljust(width)}   {step.command}" for step in steps]


def pending_line(pending: Mapping[str, Any], expires_at: int | None, now: int) -> str:
    """Return a line such as `⏸ refund(order_id=991) needs approval, expires in 24h`."""
    call = call_text(pending["tool"], pending.get("input") or {})
    expires = f", expires in {age(expires_at - now)}" if expires_at else ""
    match pending["kind"]:
        case "approval":
            again = " again, because it was interrupted"
            reason = again if pending.get("reason") == "interrupted" else ""
            return f"⏸ {call} needs {_approvals(pending)}{reason}{expires}"
        case "question":
            prompt = line(pending.get("prompt") or call, 300)
            return f"⏸ asks: {prompt}{_answers(pending)}{expires}"
        case "timer":
            remaining = f" for another {age(expires_at - now)}" if expires_at else ""
            return f"⏲ {call} waits{remaining}"
        case "child":
            return f"⏳ {call} waits for its child session{expires}"
        case _:
            ref = pending.get("externalRef")
            external = f" (external ref {line(ref, 80)})" if ref else ""
            return f"⏳ {call} waits for its result{external}{expires}"


def waits_text(calls: Sequence[Mapping[str, Any]]) -> str:
    """Return what open calls wait for: `2 decisions and 1 result`."""
    names = {"child": "background agent", "timer": "timer"}
    nouns = Counter(
        "decision" if call["kind"] in APPROVER_KINDS else names.get(call["kind"], "result")
        for call in calls
    )
    texts = [plural(nouns[noun], noun) for noun in ("decision", "result", *names.values())]
    *rest, last = [text for text in texts if not text.startswith("0 ")]
    return f"{', '.join(rest)} and {last}" if rest else last


def _answers(pending: Mapping[str, Any]) -> str:
    """Return which answers a question accepts: ` (red or blue)`, or the schema of the answer."""
    if choices := pending.get("choices"):
        texts = [item if isinstance(item, str) else json.dumps(item) for item in choices]
        return f" ({line(' or '.join(texts), 300)})"
    schema = pending.get("schema")
    return f" (JSON of the schema {line(json.dumps(schema), 300)})" if schema else ""


def _approvals(pending: Mapping[str, Any]) -> str:
    """Return which approvals a call needs: `approval`, or `2 more approvals (approved by ana)`."""
    missing, votes = pending.get("missingApprovals") or 1, pending.get("votes") or ()
    prompt = own_prompt(pending["tool"], pending.get("prompt"))
    question = f": {line(prompt, 300)}" if prompt else ""
    if missing == 1 and not votes:
        return f"approval{question}"
    names = f" ({approvers_text(pending)})" if votes else ""
    return f"{plural(missing, 'more approval')}{names}{question}"


def own_prompt(tool: str, prompt: str | None) -> str:
    """Return the question that a tool defines; empty for one that only repeats the call."""
    text = prompt or ""
    is_default = text.startswith(f"Run {tool} with ") or text in ("", f"Run {tool}?")
    return "" if is_default else text


def question_text(tool: str, prompt: str | None) -> str:
    """Return the question of an approval in one line: the tool's own, or `Run refund?`."""
    return " ".join(own_prompt(tool, prompt).split()) or f"Run {tool}?"


def approvers_text(pending: Mapping[str, Any]) -> str:
    """Return who has approved what: `approved by ana and ben with cents=4000`."""
    names = " and ".join(line(vote["by"]) for vote in pending["votes"])
    changes = arguments_text(pending["votes"][0].get("args"))
    return f"approved by {names}{f' with {changes}' if changes else ''}"


def pending_steps(call: Mapping[str, Any], commands: Commands) -> Steps:
    """Return the steps that settle an open call."""
    command = commands.command
    cancel = Step("cancel", command("pending", "cancel", call["id"]))
    respond = command("pending", "respond", call["id"], "--output", "…")
    match call["kind"]:
        case "approval":
            steps = [
                Step("approve", command("approve", call["id"])),
                Step("deny", command("deny", call["id"])),
            ]
            allowed = call.get("allowedDecisions") or ("approve", "deny")
            if "respond" in allowed and "approve" not in allowed:
                steps.append(Step("respond", respond))
            return tuple(step for step in steps if step.label in allowed) or (cancel,)
        case "question":
            return (Step("answer", respond),)
        case "tool":
            result = command("pending", "result", call["id"], "--output", "…")
            return (Step("result", result), cancel)
        case _:
            return (cancel,)
