"""Models: the protocol that they follow, its values, and the models that come with perdure."""

from perdure.core.conversation.messages import (
    Answer,
    AssistantMessage,
    Message,
    RequestedCall,
    ToolMessage,
    UserMessage,
)
from perdure.runtime.models.base import Model, Request, ToolSpec
from perdure.runtime.models.named import PydanticAIModel
from perdure.views.events import Delta
from perdure.views.usage import Usage

__all__ = [
    "Answer",
    "AssistantMessage",
    "Delta",
    "Message",
    "Model",
    "PydanticAIModel",
    "Request",
    "RequestedCall",
    "ToolMessage",
    "ToolSpec",
    "Usage",
    "UserMessage",
]
