"""Closed sets of words that the log, the API and the command line share. Imports nothing heavy."""

from typing import Final, Literal

MAX_ID: Final = 200  # characters of an id or a name

RunState = Literal["pending", "running", "waiting", "completed", "failed", "cancelled"]
CallKind = Literal["tool", "approval", "question", "child", "timer"]
DecisionKind = Literal["approve", "edit", "deny", "respond"]
# What a caller may do about an open call.
Act = Literal["approve", "edit", "deny", "respond", "result", "error", "cancel"]
ReplyWord = Literal["approve", "deny"]  # a decision in a word
PendingSort = Literal["age", "expires", "newest"]  # oldest first; next deadline first
Audience = Literal["people", "machines"]  # whom a call waits for
PendingStatus = Literal["waiting", "processing", "completed", "failed", "expired", "cancelled"]
StopReason = Literal["max_tokens", "context_window", "refusal", "pause_turn"]
WorkKind = Literal["sessions", "deliveries"]  # what a worker may be limited to
OnCrash = Literal["tell", "retry", "ask"]
Role = Literal["viewer", "submitter", "approver", "operator", "admin"]
HookType = Literal[
    "before_task_start",
    "after_task_start",
    "before_task_complete",
    "after_task_complete",
    "before_task_fail",
    "after_task_fail",
]
