"""Sanitizer: turns saved messages into messages that every provider accepts.

Its five layers are the steps of `perdure.core.conversation.repair` and a last look at the result:
1. structure: values that are not messages are removed; 2. repair: empty messages are removed,
texts and arguments completed; 3. relationships: unanswered calls and orphaned results are removed;
4. sequence: results directly after their calls, unique ids, a user message first, and only keys
and blocks that the provider of the list accepts;
5. final validation, and if that ever fails, the progressive fallback.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.core.conversation.repair import Issue, find_errors, repair, sendable

SanitizationIssue = Issue
MAX_DROPPED: Final = 5


@dataclass(frozen=True, slots=True)
class SanitizationResult:
    """Valid messages, and the repairs that were needed."""

    messages: list[Any]
    issues: list[SanitizationIssue] = field(default_factory=list)
    recovered: bool = True


@dataclass(frozen=True, slots=True)
class StructureValidation:
    """The result of a validation: `valid`, or the reasons why a provider would refuse."""

    valid: bool
    errors: list[str] = field(default_factory=list)


def sanitize_recovered_messages(messages: object) -> SanitizationResult:
    """Return messages that every provider accepts. Never raises, and changes nothing in place.

    Valid messages are returned as the same objects; a valid list is returned equal, without
    issues.
    """
    repaired = repair(messages)
    sent, issues = sendable(repaired.messages)
    return SanitizationResult(fall_back(sent), [*repaired.issues, *issues])


def validate_message_structure(messages: object) -> StructureValidation:
    """Check whether the messages could be sent as they are, with a sentence for each reason."""
    errors = find_errors(messages)
    if not errors and isinstance(messages, list):
        errors = [f"message {issue.index}: {issue.details}" for issue in sendable(messages)[1]]
    return StructureValidation(not errors, errors)


def format_sanitization_issues(issues: Sequence[SanitizationIssue]) -> str:
    """Return the issues in one line, for a log."""
    if not issues:
        return "No issues found"
    text = "; ".join(f"[{issue.type}] {issue.details}" for issue in issues)
    return f"Sanitized {len(issues)} issue(s): {text}"


def fall_back(messages: list[Any]) -> list[Any]:
    """Return the messages if valid; else without the last few, else the first half, else none."""
    attempts = [messages[: len(messages) - dropped] for dropped in range(MAX_DROPPED + 1)]
    for attempt in (*attempts, messages[: len(messages) // 2]):
        if not find_errors(attempt):
            return attempt
    return []
