"""Sessions as logs of events, and messages that can always be gone on with."""

from holdfast.core.providers import render
from holdfast.sessions.building import AgentSystem, AgentSystemBuilder
from holdfast.sessions.executing import AgentExecutor
from holdfast.sessions.kept import StoreStorage
from holdfast.sessions.logger import EventLogger
from holdfast.sessions.recovering import SimpleSessionManager
from holdfast.sessions.sanitizing import (
    SanitizationIssue,
    SanitizationResult,
    StructureValidation,
    format_sanitization_issues,
    sanitize_recovered_messages,
    validate_message_structure,
)
from holdfast.sessions.storage import (
    FilesystemStorage,
    InMemoryStorage,
    NoOpStorage,
    SessionStorage,
)
from holdfast.sessions.todos import TodoManager

__all__ = [
    "AgentExecutor",
    "AgentSystem",
    "AgentSystemBuilder",
    "EventLogger",
    "FilesystemStorage",
    "InMemoryStorage",
    "NoOpStorage",
    "SanitizationIssue",
    "SanitizationResult",
    "SessionStorage",
    "SimpleSessionManager",
    "StoreStorage",
    "StructureValidation",
    "TodoManager",
    "format_sanitization_issues",
    "render",
    "sanitize_recovered_messages",
    "validate_message_structure",
]
