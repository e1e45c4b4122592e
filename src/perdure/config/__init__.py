"""Configuration: frozen, validated values from YAML; problems name file, line and key."""

from perdure.config.description import blocking_warnings, describe, token_warnings
from perdure.config.jsonschema import schema
from perdure.config.load import load
from perdure.config.settings import (
    AgentConfig,
    Config,
    McpConfig,
    McpTools,
    ModelRef,
    ServerConfig,
    StoreConfig,
    ToolRef,
)

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
