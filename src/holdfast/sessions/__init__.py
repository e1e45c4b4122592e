"""Sessions as logs of events, and messages that can always be gone on with."""

from holdfast.core.render import render
from holdfast.sessions.sanitizing import (
    SanitizationIssue,
    SanitizationResult,
    StructureValidation,
    format_sanitization_issues,
    sanitize_recovered_messages,
    validate_message_structure,
)

__all__ = [
    "SanitizationIssue",
    "SanitizationResult",
    "StructureValidation",
    "format_sanitization_issues",
    "render",
    "sanitize_recovered_messages",
    "validate_message_structure",
]
