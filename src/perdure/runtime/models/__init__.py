"""Models: the protocol that they follow, its values, and the models that come with perdure."""

from perdure.core.conversation.messages import (
    Answer,
    AssistantMessage,
    Message,
    RequestedCall,
    ToolMessage,
    UserMessage,
)
from perdure.runtime.models.base import Delta, Model, Request, ToolSpec

__all__ = [
    "Answer",
    "AssistantMessage",
    "Delta",
    "Message",
    "Model",
    "Request",
    "RequestedCall",
    "ToolMessage",
    "ToolSpec",
    "UserMessage",
]
