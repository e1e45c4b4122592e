"""Tools and the required output as pydantic-ai takes them, and the output found in the answer."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic_ai.messages import InstructionPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.tools import ToolDefinition

from holdfast.runtime.models.base import Request

OUTPUT_TOOL: Final = "final_output"
_SAYS: Final = "Give the final answer with this, once nothing else is left to do."
_VALUE: Final = "value"  # holds an output that is no object, which providers want


@dataclass(frozen=True, slots=True)
class Shape:
    """How the output is asked for: as the provider's own structured output, or by a tool."""

    parameters: ModelRequestParameters
    wrapped: bool = False

    def unwrapped(self, text: str) -> bytes | None:
        """The output in what the model gave as its object; None if it gave no JSON."""
        try:
            return self.unwrapped_of(json.loads(text))
        except ValueError:
            return None

    def unwrapped_of(self, value: object) -> bytes:
        """The output in the object itself."""
        if self.wrapped and isinstance(value, dict) and _VALUE in value:
            value = value[_VALUE]
        return json.dumps(value, ensure_ascii=False).encode()


def shape_of(request: Request, model: Model[Any]) -> Shape:
    """The tools and the output type of a request, for this model."""
    tools = [
        ToolDefinition(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=dict(tool.parameters),
        )
        for tool in request.tools
    ]
    said = [InstructionPart(request.instructions)] if request.instructions else None
    if request.output_schema is None:
        return Shape(ModelRequestParameters(function_tools=tools, instruction_parts=said))
    schema, wrapped = _as_object(request.output_schema)
    profile = model.profile
    if profile.get("supports_json_schema_output") and not profile.get(
        "native_output_requires_schema_in_instructions"
    ):
        wanted = OutputObjectDefinition(schema, name=OUTPUT_TOOL)
        parameters = ModelRequestParameters(
            function_tools=tools,
            output_mode="native",
            output_object=wanted,
            instruction_parts=said,
        )
        return Shape(parameters, wrapped)
    last = ToolDefinition(
        name=OUTPUT_TOOL, description=_SAYS, parameters_json_schema=schema, kind="output"
    )
    parameters = ModelRequestParameters(
        function_tools=tools,
        output_mode="tool",
        output_tools=[last],
        allow_text_output=False,
        instruction_parts=said,
    )
    return Shape(parameters, wrapped)


def _as_object(schema: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    if schema.get("type") == "object" or "$ref" in schema:
        return dict(schema), False
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    made = {"type": "object", "properties": {_VALUE: inner}, "required": [_VALUE]}
    return ({**made, "$defs": schema["$defs"]} if "$defs" in schema else made), True
