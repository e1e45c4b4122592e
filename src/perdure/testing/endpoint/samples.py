"""Responses that are hard to preserve, each as its provider sends it.

Every script is one conversation: three turns that call the tool `look` (`LOOKS` are the arguments),
and a last turn without a call.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from perdure.testing.provider_rules import Format

LOOKS: Final[tuple[dict[str, Any], ...]] = (
    {
        "zeal": 1.0,
        "also": None,
        "name": "Zoë 東京 “ok” 🦊\u2028\t\\",
        "deep": {"b": [], "a": {}, "c": [0.1, -0.0, 1e100, 12345678901234567890]},
    },
    {},
    {"name": "</tool> & <b>", "deep": {"": "", "x": [None, True, 1, "1"]}, "zeal": 3},
)
LAST: Final = "Everything is looked at: 完了."
LOOK_SCHEMA: Final[dict[str, Any]] = {"type": "object", "additionalProperties": True}


def _tool_use(number: int) -> dict[str, Any]:
    call = {"type": "tool_use", "id": f"toolu_0{number}Xy", "name": "look"}
    return {**call, "input": LOOKS[number], "caller": {"type": "direct"}}


_SEARCHED: Final[list[dict[str, Any]]] = [
    {
        "type": "server_tool_use",
        "id": "srvtoolu_01AbC",
        "name": "web_search",
        "input": {"query": "Zoë"},
        "caller": {"type": "direct"},
    },
    {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_01AbC",
        "content": [
            {
                "type": "web_search_result",
                "url": "https://example.com/zoë",
                "title": "Zoë: a page",
                "encrypted_content": "EqgfCioIARgBIiQ3YTAw",
                "page_age": None,
            }
        ],
        "caller": {"type": "direct"},
    },
    {
        "type": "text",
        "text": "She was there.",
        "citations": [
            {
                "type": "web_search_result_location",
                "cited_text": "was there",
                "url": "https://example.com/zoë",
                "title": "Zoë: a page",
                "encrypted_index": "Eo8BCioIAhgBIiQyYjQ0",
            }
        ],
    },
]

ANTHROPIC: Final[list[dict[str, Any]]] = [
    {
        "content": [
            {
                "type": "thinking",
                "thinking": "First:\n  look at  Zoë.\n",
                "signature": "ErUBCkYIBBgCIkD+/a==",
            },
            {"type": "text", "text": "I will look.\n\nNow: "},
            _tool_use(0),
        ],
    },
    {
        "content": [
            {"type": "thinking", "thinking": "", "signature": "EpwBCkYIBRgCKkC0empty"},
            {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix/LafPsn4a"},
            _tool_use(1),
        ],
    },
    {
        "content": [
            {"type": "thinking", "thinking": "Search.", "signature": "EqQBCkYIBhgCKkAsearch"},
            *_SEARCHED,
            {"type": "thinking", "thinking": "Again.", "signature": "EqQBCkYIBhgCKkAagain"},
            _tool_use(2),
        ],
        "usage": {"cache_read_input_tokens": 7, "cache_creation_input_tokens": 5},
    },
    {
        "content": [
            {"type": "thinking", "thinking": "Done.", "signature": "EqQBCkYIBxgCKkAdone"},
            {"type": "text", "text": LAST},
        ]
    },
]


# A turn that Anthropic paused during a search and then continued.
PAUSED: Final[list[dict[str, Any]]] = [
    {
        "content": [
            {"type": "thinking", "thinking": "Search.", "signature": "EqQBCkYIBhgCKkApause"},
            {"type": "text", "text": "Let me look."},
            _SEARCHED[0],
        ],
        "stop": "pause_turn",
    },
    {"content": [_SEARCHED[1], {**_SEARCHED[2], "text": "Perdure is a clamp."}]},
]


def _function(number: int) -> dict[str, Any]:
    # Spaces and escapes as models write them.
    text = json.dumps(LOOKS[number], ensure_ascii=number == 2, indent=1 if number == 0 else None)
    return {"name": "look", "arguments": text}


def _called(number: int, **more: Any) -> dict[str, Any]:
    call = {"id": f"call_{number}aB", "type": "function", "function": _function(number)}
    return {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call], **more}


CHAT: Final[list[dict[str, Any]]] = [
    {"message": _called(0, content="I will look.\n\nNow: ")},
    {"message": _called(1)},
    {
        "message": _called(2),
        "usage": {"prompt_tokens_details": {"cached_tokens": 3, "audio_tokens": 0}},
    },
    {"message": {"role": "assistant", "content": LAST, "refusal": None}},
]
# As servers of open models send it; clients return it with the calls that follow it.
CHAT_REASONING: Final[list[dict[str, Any]]] = [
    {"message": {**turn["message"], "reasoning_content": f"Thought {n}: Zoë.\n"}}
    for n, turn in enumerate(CHAT)
]


def _reasoning(number: int, *summary: str) -> dict[str, Any]:
    return {
        "id": f"rs_0{number}68af",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": text} for text in summary],
        "encrypted_content": f"gAAAAABo{number}==",
    }


def _function_call(number: int) -> dict[str, Any]:
    function = _function(number)
    return {
        "id": f"fc_0{number}68af",
        "type": "function_call",
        "status": "completed",
        "arguments": function["arguments"],
        "call_id": f"call_{number}aB",
        "name": function["name"],
    }


def _message(number: int, text: str, **more: Any) -> dict[str, Any]:
    part = {"type": "output_text", "annotations": [], "logprobs": [], "text": text}
    return {
        "id": f"msg_0{number}68af",
        "type": "message",
        "status": "completed",
        "content": [{**part, **more}],
        "role": "assistant",
    }


_CITED: Final = {
    "type": "url_citation",
    "start_index": 0,
    "end_index": 3,
    "url": "https://example.com/zoë",
    "title": "Zoë: a page",
}

RESPONSES: Final[list[dict[str, Any]]] = [
    {
        "output": [
            _reasoning(0, "**Looking**\n\nFirst  Zoë.", "Then more."),
            {**_message(0, "I will look.\n\nNow: "), "phase": "commentary"},
            _function_call(0),
        ]
    },
    {"output": [_reasoning(1), _function_call(1)]},
    {
        "output": [
            _reasoning(2, "Search."),
            {
                "id": "ws_0268af",
                "type": "web_search_call",
                "status": "completed",
                "action": {"type": "search", "query": "Zoë", "queries": ["Zoë"]},
            },
            _message(2, "Zoë was there.", annotations=[_CITED]),
            _function_call(2),
        ],
        "usage": {"output_tokens_details": {"reasoning_tokens": 11}},
    },
    {"output": [_reasoning(3), {**_message(3, LAST), "phase": "final_answer"}]},
]

HARD: Final[Mapping[Format, list[dict[str, Any]]]] = {
    "anthropic": ANTHROPIC,
    "openai-chat": CHAT,
    "openai-responses": RESPONSES,
}
