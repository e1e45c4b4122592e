"""YAML → frozen, validated configuration; every mistake is named with file, line and key."""

from holdfast.config.description import blocking_remarks, describe
from holdfast.config.jsonschema import schema
from holdfast.config.loading import load
from holdfast.config.settings import (
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
