"""What answers: the protocol that models follow, and the models that come with perdure."""

from perdure.runtime.models.base import Delta, Model, Request, ToolSpec

__all__ = ["Delta", "Model", "Request", "ToolSpec"]
