"""Sessions as logs of events, and messages that can always be gone on with."""

from perdure.core.providers import render
from perdure.sessions.building import AgentSystem, AgentSystemBuilder
from perdure.sessions.executing import AgentExecutor
from perdure.sessions.kept import StoreStorage
from perdure.sessions.logger import EventLogger
from perdure.sessions.recovering import SimpleSessionManager
from perdure.sessions.sanitizing import (
    SanitizationIssue,
    SanitizationResult,
    StructureValidation,
    format_sanitization_issues,
    sanitize_recovered_messages,
    validate_message_structure,
)
from perdure.sessions.storage import (
    FilesystemStorage,
    InMemoryStorage,
    NoOpStorage,
    SessionStorage,
)
from perdure.sessions.todos import TodoManager

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
