"""Closed sets of words that the log, the API and the command line share. Imports nothing heavy."""

from typing import Literal

RunState = Literal["pending", "running", "waiting", "completed", "failed", "cancelled"]
CallKind = Literal["tool", "approval", "question", "child", "timer"]
DecisionKind = Literal["approve", "edit", "deny", "respond"]
PendingStatus = Literal["waiting", "processing", "completed", "failed", "expired", "cancelled"]
OnCrash = Literal["tell", "retry", "ask"]
Role = Literal["viewer", "submitter", "approver", "operator", "admin"]
