"""Configuration: frozen, validated values from YAML; problems name file, line and key.

Its names are loaded at first use, because the models need pydantic.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.config.agents import AgentConfig, McpTools, ModelRef, ToolRef
    from perdure.config.description import blocking_warnings, describe, token_warnings
    from perdure.config.jsonschema import schema
    from perdure.config.loader import load
    from perdure.config.settings import Config, McpConfig, ServerConfig
    from perdure.config.stores import StoreConfig

_HOMES = {
    "AgentConfig": "agents",
    "Config": "settings",
    "McpConfig": "settings",
    "McpTools": "agents",
    "ModelRef": "agents",
    "ServerConfig": "settings",
    "StoreConfig": "stores",
    "ToolRef": "agents",
    "blocking_warnings": "description",
    "describe": "description",
    "load": "loader",
    "schema": "jsonschema",
    "token_warnings": "description",
}

__all__ = [
    "AgentConfig",
    "Config",
    "McpConfig",
    "McpTools",
    "ModelRef",
    "ServerConfig",
    "StoreConfig",
    "ToolRef",
    "blocking_warnings",
    "describe",
    "load",
    "schema",
    "token_warnings",
]


def __getattr__(name: str) -> Any:
    """Find a name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
