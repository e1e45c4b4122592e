"""Fixtures that the conformance suite calls: tools, prompts and resources that never wait."""

import asyncio
import base64
import hashlib
import hmac
import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError

Json = dict[str, Any]
COMPLETE: Final = {"resultType": "complete"}
_KEY: Final = b"a key of the conformance profile"


def _png() -> str:
    """Return a red pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixel = zlib.compress(b"\x00\xff\x00\x00")
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + parts).decode()


def _wav() -> str:
    """Return a moment of silence."""
    samples = b"\x00\x00" * 8
    head = b"RIFF" + struct.pack("<I", 36 + len(samples)) + b"WAVEfmt "
    head += struct.pack("<IHHIIHH", 16, 1, 1, 8000, 16000, 2, 16) + b"data"
    return base64.b64encode(head + struct.pack("<I", len(samples)) + samples).decode()


PNG, WAV = _png(), _wav()
IMAGE: Final = {"type": "image", "data": PNG, "mimeType": "image/png"}


def text(value: str) -> Json:
    """Return a text block."""
    return {"type": "text", "text": value}


def _resource(uri: str, media_type: str, value: str) -> Json:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": media_type, "text": value}}


def complete(*content: Json, is_error: bool = False) -> Json:
    """Return the result of a tool call."""
    return {**COMPLETE, "content": list(content), "isError": is_error}


def elicitation(message: str, **properties: Json) -> Json:
    """Return a request for input of a person."""
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {
        "method": "elicitation/create",
        "params": {"message": message, "requestedSchema": schema},
    }


def sampling(prompt: str, most: int) -> Json:
    """Return a request for a response of the client's model."""
    messages = [{"role": "user", "content": text(prompt)}]
    return {
        "method": "sampling/createMessage",
        "params": {"messages": messages, "maxTokens": most},
    }


ROOTS: Final[Json] = {"method": "roots/list", "params": {}}
NAME: Final = elicitation("What is your name?", name={"type": "string"})


def needs_input(state: str | None = None, **requests: Json) -> Json:
    """Return the result that asks for input, with a signed state."""
    result: Json = {"resultType": "input_required", "inputRequests": requests}
    return result if state is None else {**result, "requestState": signed(state)}


def signed(state: str) -> str:
    """Return a state that cannot be changed without notice."""
    digest = hmac.new(_KEY, state.encode(), hashlib.sha256).hexdigest()
    return f"{digest}.{state}"


def verified(value: Any) -> str:
    """Return the state of a signed one. Raises MCPError."""
    digest, _, state = str(value).partition(".")
    if not hmac.compare_digest(signed(state).partition(".")[0], digest):
        raise MCPError(code=types.INVALID_PARAMS, message="requestState was changed")
    return state


def responses(params: Any) -> Mapping[str, Any]:
    """Return the input responses of a request that are objects."""
    values = (params.model_dump(by_alias=True).get("inputResponses") or {}) if params else {}
    return {key: value for key, value in values.items() if isinstance(value, dict)}


def accepted(params: Any, key: str, field: str) -> str | None:
    """Return a field of an accepted form."""
    content = responses(params).get(key, {}).get("content") or {}
    return content.get(field) if isinstance(content, dict) else None


# --- tools ----------------------------------------------------------------------------------------

SCHEMA_2020: Final[Json] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
_TEXT: Final = {"type": "string"}
_HEADER: Final = {"type": "string", "x-mcp-header": "Region"}
SCHEMAS: Final[Mapping[str, Json]] = {
    "greet": {"type": "object", "properties": {"name": _TEXT}},
    "json_schema_2020_12_tool": SCHEMA_2020,
    "test_sampling": {"type": "object", "properties": {"prompt": _TEXT}, "required": ["prompt"]},
    "test_elicitation": {
        "type": "object",
        "properties": {"message": _TEXT},
        "required": ["message"],
    },
    "test_x_mcp_header": {"type": "object", "properties": {"region": _HEADER}},
}
PLAIN: Final = {"type": "object", "properties": {}}
NAMES: Final = (
    *("greet", "json_schema_2020_12_tool", "test_x_mcp_header", "test_missing_capability"),
    *("test_simple_text", "test_image_content", "test_audio_content", "test_embedded_resource"),
    *("test_multiple_content_types", "test_tool_with_logging", "test_error_handling"),
    *("test_logging_tool", "test_streaming_elicitation"),
    *("test_tool_with_progress", "test_sampling", "test_elicitation", "test_reconnection"),
    *("test_elicitation_sep1034_defaults", "test_elicitation_sep1330_enums"),
    *("test_input_required_result_elicitation", "test_input_required_result_sampling"),
    *("test_input_required_result_list_roots", "test_input_required_result_request_state"),
    *("test_input_required_result_multiple_inputs", "test_input_required_result_multi_round"),
    *("test_input_required_result_tampered_state", "test_input_required_result_capabilities"),
)


def descriptions() -> list[Json]:
    """Return the fixture tools as `tools/list` has them."""
    return [
        {"name": name, "description": f"Fixture {name}.", "inputSchema": SCHEMAS.get(name, PLAIN)}
        for name in NAMES
    ]


async def call(ctx: Any, params: Any) -> Json:
    """Call a fixture tool."""
    name, arguments = params.name, params.arguments or {}
    if name.startswith("test_input_required_result"):
        return _with_input(ctx, params)
    if name in _ANSWERS:
        return complete(*_ANSWERS[name])
    if name in _SLOW:
        slow: Json = await _SLOW[name](ctx, arguments)
        return slow
    if name == "greet":
        return complete(text(f"Hello, {arguments.get('name', 'World')}!"))
    if name == "test_error_handling":
        message = "This tool intentionally returns an error for testing"
        return complete(text(message), is_error=True)
    if name == "test_missing_capability":
        return _requires_sampling(ctx)
    return complete(text(json.dumps(arguments)))


_ANSWERS: Final[Mapping[str, list[Json]]] = {
    "test_simple_text": [text("This is a simple text response for testing.")],
    "test_image_content": [IMAGE],
    "test_audio_content": [{"type": "audio", "data": WAV, "mimeType": "audio/wav"}],
    "test_embedded_resource": [
        _resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")
    ],
    "test_multiple_content_types": [
        text("Multiple content types test:"),
        IMAGE,
        _resource(
            "test://mixed-content-resource", "application/json", '{"test":"data","value":123}'
        ),
    ],
}


def _requires_sampling(ctx: Any) -> Json:
    capabilities = ctx.session.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        raise MCPError(
            code=types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            message="Client did not declare sampling",
            data={"requiredCapabilities": {"sampling": {}}},
        )
    return complete(text("sampling is declared"))


async def _progress(ctx: Any, _: Json) -> Json:
    for value in (0, 50, 100):
        await ctx.session.report_progress(value, 100)
        await asyncio.sleep(0.05)
    return complete(text("progress was reported"))


async def _logging(ctx: Any, _: Json) -> Json:
    for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.session.send_log_message("info", line, related_request_id=ctx.request_id)
        await asyncio.sleep(0.05)
    return complete(text("log messages were sent"))


async def _streaming(ctx: Any, _: Json) -> Json:
    await ctx.session.report_progress(1, 2)
    return needs_input(user_name=NAME)


async def _reconnection(ctx: Any, _: Json) -> Json:
    if ctx.close_sse_stream is not None:
        await ctx.close_sse_stream()
    await asyncio.sleep(0.1)
    return complete(text("reconnected"))


async def _sample(ctx: Any, arguments: Json) -> Json:
    message = types.SamplingMessage(
        role="user", content=types.TextContent(text=arguments["prompt"])
    )
    result = await ctx.session.create_message(
        [message], max_tokens=100, related_request_id=ctx.request_id
    )
    return complete(text(f"LLM response: {result.content.text}"))


async def _elicit(ctx: Any, message: str, schema: Json) -> Any:
    return await ctx.session.elicit_form(message, schema, related_request_id=ctx.request_id)


async def _elicitation(ctx: Any, arguments: Json) -> Json:
    properties = {
        "username": {"type": "string", "description": "User's response"},
        "email": {"type": "string", "description": "User's email address"},
    }
    schema = {"type": "object", "properties": properties, "required": ["username", "email"]}
    result = await _elicit(ctx, arguments["message"], schema)
    return complete(text(f"User response: action: {result.action}, content: {result.content}"))


async def _defaults(ctx: Any, _: Json) -> Json:
    properties = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {
            "type": "string",
            "enum": ["active", "inactive", "pending"],
            "default": "active",
        },
        "verified": {"type": "boolean", "default": True},
    }
    result = await _elicit(ctx, "Defaults", {"type": "object", "properties": properties})
    return _completed(result)


async def _enums(ctx: Any, _: Json) -> Json:
    titled = [
        {"const": f"value{number}", "title": f"{word} Option"}
        for number, word in enumerate(("First", "Second", "Third"), 1)
    ]
    plain = {"type": "string", "enum": ["option1", "option2", "option3"]}
    properties = {
        "untitledSingle": plain,
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": plain},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    result = await _elicit(ctx, "Enums", {"type": "object", "properties": properties})
    return _completed(result)


def _completed(result: Any) -> Json:
    content = json.dumps(result.content)
    return complete(text(f"Elicitation completed: action={result.action}, content={content}"))


_SLOW: Final[Mapping[str, Any]] = {
    "test_tool_with_progress": _progress,
    "test_tool_with_logging": _logging,
    "test_logging_tool": _logging,
    "test_streaming_elicitation": _streaming,
    "test_reconnection": _reconnection,
    "test_sampling": _sample,
    "test_elicitation": _elicitation,
    "test_elicitation_sep1034_defaults": _defaults,
    "test_elicitation_sep1330_enums": _enums,
}


# --- tools that ask for input ---------------------------------------------------------------------


def _with_input(ctx: Any, params: Any) -> Json:
    state = params.model_dump(by_alias=True).get("requestState")
    present = None if state is None else verified(state)
    result: Json = _ASKING[params.name](ctx, params, present)
    return result


def _ask_name(_: Any, params: Any, __: str | None) -> Json:
    name = accepted(params, "user_name", "name")
    return needs_input(user_name=NAME) if name is None else complete(text(f"Hello, {name}!"))


def _ask_sampling(_: Any, params: Any, __: str | None) -> Json:
    reply = responses(params).get("capital_question")
    if reply is None:
        return needs_input(capital_question=sampling("What is the capital of France?", 100))
    return complete(text(json.dumps(reply.get("content"))))


def _ask_roots(_: Any, params: Any, __: str | None) -> Json:
    reply = responses(params).get("client_roots")
    if reply is None:
        return needs_input(client_roots=ROOTS)
    return complete(text(f"Roots: {json.dumps(reply.get('roots'), default=str)}"))


def _ask_state(_: Any, params: Any, state: str | None) -> Json:
    if not responses(params) or state is None:
        confirm = elicitation("Please confirm", ok={"type": "boolean"})
        return needs_input("confirming", confirm=confirm)
    return complete(text("state-ok"))


def _ask_several(_: Any, params: Any, __: str | None) -> Json:
    present = responses(params)
    if {"user_name", "greeting", "client_roots"} <= present.keys():
        return complete(text("all inputs arrived"))
    greeting = sampling("Generate a greeting", 50)
    return needs_input("several", user_name=NAME, greeting=greeting, client_roots=ROOTS)


def _ask_rounds(_: Any, params: Any, state: str | None) -> Json:
    if state is None or (state == "one" and accepted(params, "step1", "name") is None):
        first = elicitation("Step 1: What is your name?", name={"type": "string"})
        return needs_input("one", step1=first)
    if state == "one":
        second = elicitation("Step 2: What is your favorite color?", color={"type": "string"})
        return needs_input(f"two {accepted(params, 'step1', 'name')}", step2=second)
    return complete(text(f"{state[4:]} likes {accepted(params, 'step2', 'color')}"))


def _ask_declared(ctx: Any, params: Any, _: str | None) -> Json:
    if responses(params):
        return complete(text("inputs arrived"))
    capabilities = ctx.session.client_capabilities
    requests: dict[str, Json] = {}
    if capabilities is not None and capabilities.elicitation is not None:
        requests["user_name"] = NAME
    if capabilities is not None and capabilities.sampling is not None:
        requests["greeting"] = sampling("Generate a greeting", 50)
    return needs_input(None, **requests) if requests else complete(text("nothing can be asked"))


_ASKING: Final[Mapping[str, Any]] = {
    "test_input_required_result_elicitation": _ask_name,
    "test_input_required_result_sampling": _ask_sampling,
    "test_input_required_result_list_roots": _ask_roots,
    "test_input_required_result_request_state": _ask_state,
    "test_input_required_result_tampered_state": _ask_state,
    "test_input_required_result_multiple_inputs": _ask_several,
    "test_input_required_result_multi_round": _ask_rounds,
    "test_input_required_result_capabilities": _ask_declared,
}


# --- prompts and resources ------------------------------------------------------------------------


def _argument(name: str) -> Json:
    return {"name": name, "description": f"Argument {name}.", "required": True}


PROMPTS: Final[list[Json]] = [
    {"name": "test_simple_prompt", "description": "A simple prompt."},
    {
        "name": "test_prompt_with_arguments",
        "description": "A prompt with arguments.",
        "arguments": [_argument("arg1"), _argument("arg2")],
    },
    {
        "name": "test_prompt_with_embedded_resource",
        "description": "A prompt with a resource.",
        "arguments": [_argument("resourceUri")],
    },
    {"name": "test_prompt_with_image", "description": "A prompt with an image."},
    {"name": "test_input_required_result_prompt", "description": "A prompt that asks."},
]


def prompt(params: Any) -> Json:
    """Return a prompt."""
    arguments = params.arguments or {}
    if params.name == "test_input_required_result_prompt":
        context = accepted(params, "user_context", "context")
        if context is None:
            question = "What context should the prompt use?"
            return needs_input(user_context=elicitation(question, context={"type": "string"}))
        return _messages(text(f"Use this context: {context}"))
    if params.name == "test_prompt_with_arguments":
        values = f"arg1='{arguments.get('arg1')}', arg2='{arguments.get('arg2')}'"
        return _messages(text(f"Prompt with arguments: {values}"))
    if params.name == "test_prompt_with_embedded_resource":
        content = "Embedded resource content for testing."
        resource = _resource(str(arguments.get("resourceUri")), "text/plain", content)
        return _messages(resource, text("Please process the embedded resource above."))
    if params.name == "test_prompt_with_image":
        return _messages(IMAGE, text("Please analyze the image above."))
    if params.name == "test_simple_prompt":
        return _messages(text("This is a simple prompt for testing."))
    raise MCPError(code=types.INVALID_PARAMS, message=f"there is no prompt {params.name!r}")


def _messages(*content: Json) -> Json:
    return {**COMPLETE, "messages": [{"role": "user", "content": item} for item in content]}


RESOURCES: Final[list[Json]] = [
    {"uri": "test://static-text", "name": "static-text", "mimeType": "text/plain"},
    {"uri": "test://static-binary", "name": "static-binary", "mimeType": "image/png"},
    {"uri": "test://watched-resource", "name": "watched-resource", "mimeType": "text/plain"},
]
TEMPLATE: Final[Json] = {
    "uriTemplate": "test://template/{id}/data",
    "name": "template",
    "mimeType": "application/json",
}


def resource(uri: str) -> Json | None:
    """Return the contents of a fixture resource; None if it is not one."""
    if uri == "test://static-text":
        content = {
            "mimeType": "text/plain",
            "text": "This is the content of the static text resource.",
        }
    elif uri == "test://static-binary":
        content = {"mimeType": "image/png", "blob": PNG}
    elif uri == "test://watched-resource":
        content = {"mimeType": "text/plain", "text": "watched"}
    elif uri.startswith("test://template/") and uri.endswith("/data"):
        number = uri.removeprefix("test://template/").removesuffix("/data")
        value = {"id": number, "templateTest": True, "data": f"Data for ID: {number}"}
        content = {"mimeType": "application/json", "text": json.dumps(value)}
    else:
        return None
    return {**COMPLETE, "contents": [{"uri": uri, **content}]}
