"""The sanitizer: whatever was saved, messages with which a session can go on.

Its five layers are the steps of `perdure.core.conversation.repair` and a last look at the result:
1. structure: what is no message is removed; 2. repair: empty messages are removed, texts and
arguments made whole; 3. relationships: unanswered calls and orphaned results are removed;
4. sequence: results directly after their calls, ids told apart, a user message first;
5. final validation, and if that should ever fail, the progressive fall-back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.core.conversation.repair import Issue, errors_of, repair

SanitizationIssue = Issue
MAX_DROPPED: Final = 5


@dataclass(frozen=True, slots=True)
class SanitizationResult:
    """Valid messages, and what was done to get them."""

    messages: list[Any]
    issues: list[SanitizationIssue] = field(default_factory=list)
    recovered: bool = True


@dataclass(frozen=True, slots=True)
class StructureValidation:
    """Whether a provider would take the messages, and why not."""

    valid: bool
    errors: list[str] = field(default_factory=list)


def sanitize_recovered_messages(messages: object) -> SanitizationResult:
    """Messages that every provider takes, of whatever is given. Never raises, changes nothing.

    Messages that need nothing are the given ones themselves; a list that needs nothing comes back
    equal, without issues.
    """
    repaired = repair(messages)
    return SanitizationResult(fall_back(repaired.messages), list(repaired.issues))


def validate_message_structure(messages: object) -> StructureValidation:
    """Whether the messages could be sent as they are, with a sentence for each reason why not."""
    errors = errors_of(messages)
    return StructureValidation(not errors, errors)


def format_sanitization_issues(issues: Sequence[SanitizationIssue]) -> str:
    """The issues in one line, for a log."""
    if not issues:
        return "No issues found"
    told = "; ".join(f"[{issue.type}] {issue.details}" for issue in issues)
    return f"Sanitized {len(issues)} issue(s): {told}"


def fall_back(messages: list[Any]) -> list[Any]:
    """The messages if they are valid; else without the last few, else the first half, else none."""
    tries = [messages[: len(messages) - dropped] for dropped in range(MAX_DROPPED + 1)]
    for tried in (*tries, messages[: len(messages) // 2]):
        if not errors_of(tried):
            return tried
    return []
