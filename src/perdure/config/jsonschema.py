"""JSON schema of the configuration, generated from its models, for editors that complete YAML."""

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from perdure.config.blocks import Block
from perdure.config.settings import Config


def schema() -> dict[str, Any]:
    """Return the JSON schema (2020-12) of `perdure.yaml`."""
    block_schema = Config.model_json_schema(schema_generator=_Generator)
    definitions = block_schema.pop("$defs")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "perdure.yaml",
        **_resolved(block_schema, definitions),
    }


class _Generator(GenerateJsonSchema):
    """Generator of a schema as a YAML file needs it: an empty block or list may be null."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """Return the schema of a key that may be absent."""
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Return the schema without its default."""
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, _: Any) -> bool:
        """Omit titles."""
        return False

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        """Return the alternatives of a value that is written in several ways."""
        return {"anyOf": [self.generate_inner(choice) for choice in schema["choices"].values()]}

    def tuple_schema(self, schema: core_schema.TupleSchema) -> JsonSchemaValue:
        """Return the schema of a list."""
        return {
            "type": ["array", "null"],
            "items": self.generate_inner(schema["items_schema"][0]),
        }

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        """Return the schema of a block with names that the user chooses."""
        names = self.generate_inner(schema["keys_schema"])
        return {
            "type": ["object", "null"],
            "additionalProperties": self.generate_inner(schema["values_schema"]),
            **({"propertyNames": names} if "pattern" in names else {}),
        }

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Return the schema of a block of fixed keys."""
        block = super().model_schema(schema)
        block_schema = {
            "type": "object" if "required" in block else ["object", "null"],
            "properties": block.get("properties", {}),
            "additionalProperties": False,
        }
        if "required" in block:
            block_schema["required"] = block["required"]
        if issubclass(schema["cls"], Block) and schema["cls"].either:
            block_schema["not"] = {"required": list(schema["cls"].either)}
        return block_schema


def _resolved(node: Any, definitions: dict[str, Any]) -> Any:
    """Return a schema with its references replaced: editors show the keys better without them."""
    if isinstance(node, list):
        return [_resolved(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _resolved(definitions[node["$ref"].removeprefix("#/$defs/")], definitions)
    return {name: _resolved(value, definitions) for name, value in node.items()}
