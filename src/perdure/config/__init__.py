"""YAML → frozen, validated configuration; every mistake is named with file, line and key."""

from perdure.config.description import blocking_remarks, describe
from perdure.config.jsonschema import schema
from perdure.config.loading import load
from perdure.config.settings import (
    AgentConfig,
    Config,
    McpTools,
    ModelRef,
    ServerConfig,
    StoreConfig,
    ToolRef,
)

__all__ = [
    "AgentConfig",
    "Config",
    "McpTools",
    "ModelRef",
    "ServerConfig",
    "StoreConfig",
    "ToolRef",
    "blocking_remarks",
    "describe",
    "load",
    "schema",
]
