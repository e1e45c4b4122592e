"""API of the specification; new programs use Runtime.

Sessions as event logs: storages, a logger, recovery, an executor.
"""

from perdure.core.providers.formats import render
from perdure.sessions.builder import AgentSystem, AgentSystemBuilder
from perdure.sessions.executor import AgentExecutor
from perdure.sessions.logger import EventLogger
from perdure.sessions.recovery import SimpleSessionManager
from perdure.sessions.sanitizer import (
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
from perdure.sessions.store_storage import StoreStorage
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
