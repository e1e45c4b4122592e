"""Samples for OpenAI's rules: a request that passes and one that fails each."""

from typing import Any, Final

Body = dict[str, Any]
TOOL: Final = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}


def _request(*messages: Any, **more: Any) -> Body:
    return {"messages": list(messages), **more}


def _called(*calls: Any, **more: Any) -> Body:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


def _call(call_id: Any = "a", name: Any = "read", arguments: Any = "{}", **more: Any) -> Body:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function, **more}


def _result(call_id: Any = "a", content: Any = "ok") -> Body:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _with_tools(call: Body | None = None, *results: Body) -> Body:
    call = call or _call()
    results = results or (_result(call.get("id")),)
    return _request(_HI, _called(call), *results, tools=[TOOL])


_HI: Final = {"role": "user", "content": "hi"}
_HELLO: Final = {"role": "assistant", "content": "hello"}
_LONG: Final = "x" * 65
_FUNCTION: Final = {"name": "read", "arguments": "{}"}

CHAT: Final[dict[str, tuple[Body, Body]]] = {
    "C01": (_request(_HI), {"messages": "hi"}),
    "C02": (_request(_HI), _request()),
    "C03": (_request(_HI), _request({"role": "human", "content": "hi"})),
    "C04": (_request(_HI), _request({"role": "user", "content": []})),
    "C05": (_with_tools(), _request(_HI, {"role": "assistant", "content": None})),
    "C06": (_request(_HI), _request({"role": "user", "content": 3})),
    "C07": (
        _request({"role": "user", "content": [{"type": "text", "text": "hi"}]}),
        _request({"role": "user", "content": [{"type": "tool_result", "content": "hi"}]}),
    ),
    "C08": (_with_tools(), _request({**_HI, "tool_calls": [_call()]}, _result(), tools=[TOOL])),
    "C09": (_request(_HI, _HELLO), _request(_HI, {**_HELLO, "tool_calls": []})),
    "C10": (_with_tools(), _with_tools({"type": "function", "function": _FUNCTION}, _result())),
    "C11": (_with_tools(_call("x" * 40)), _with_tools(_call("x" * 41))),
    "C12": (_with_tools(), _with_tools(_call(type="tool"))),
    "C13": (_with_tools(), _with_tools(_call(name="read file"))),
    "C14": (_with_tools(_call(name="x" * 64)), _with_tools(_call(name=_LONG))),
    "C15": (_with_tools(), _with_tools(_call(arguments={}))),
    "C16": (_with_tools(_call(arguments='{"a": 1}')), _with_tools(_call(arguments='{"a": '))),
    "C17": (
        _request(_HI, _called(_call("a"), _call("b")), _result("a"), _result("b"), tools=[TOOL]),
        _request(_HI, _called(_call("a"), _call("a")), _result("a"), tools=[TOOL]),
    ),
    "C20": (_with_tools(), _request(_HI, _called(_call()), _HI, tools=[TOOL])),
    "C21": (_with_tools(), _request(_HI, _called(_call()), _result(), _result(None), tools=[TOOL])),
    "C22": (_with_tools(), _request(_HI, _result())),
    "C23": (_with_tools(), _with_tools(None, _result(), _result())),
    "C24": (
        _request(_HI, tools=[TOOL], parallel_tool_calls=True),
        _request(_HI, parallel_tool_calls=True),
    ),
    "C25": (_request(_HI, tools=[TOOL]), _request(_HI, tools=[])),
}


def _input(*items: Any, **more: Any) -> Body:
    return {"input": list(items), **more}


def _item(kind: str, call_id: Any = "a", **more: Any) -> Body:
    return {"type": kind, "call_id": call_id, **more}


def _function(call_id: Any = "a", **more: Any) -> Body:
    return _item("function_call", call_id, **{"name": "read", "arguments": "{}", **more})


def _output(call_id: Any = "a", output: Any = "ok") -> Body:
    return _item("function_call_output", call_id, output=output)


def _message(role: str, kind: str, **more: Any) -> Body:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": "x"}], **more}


_USER: Final = _message("user", "input_text")
_ASSISTANT: Final = _message("assistant", "output_text")
_PAIR: Final = (_function(), _output())
_REASONING: Final = {"type": "reasoning", "summary": [], "encrypted_content": "…"}

RESPONSES: Final[dict[str, tuple[Body, Body]]] = {
    "R01": (_input(_USER), {}),
    "R02": (
        _input(_USER, previous_response_id="resp_1"),
        _input(_USER, previous_response_id="nowhere"),
    ),
    "R03": (_input(_USER), _input({"type": "tool_use"})),
    "R04": (
        _input(_REASONING, {**_ASSISTANT, "id": "msg_1"}),
        _input({**_USER, "id": ""}),
    ),
    "R05": (
        _input({**_USER, "id": "msg_1"}),
        _input({**_USER, "id": f"msg_{_LONG}"}),
    ),
    "R06": (_input({**_USER, "id": "msg_1"}), _input({**_USER, "id": "call_1"})),
    "R07": (
        _input({**_USER, "id": "msg_1"}, {**_USER, "id": "msg_2"}),
        _input({**_USER, "id": "msg_1"}, {**_USER, "id": "msg_1"}),
    ),
    "R08": (
        _input(_REASONING, _ASSISTANT, store=False),
        _input({"type": "reasoning", "summary": [], "id": "rs_1"}, _ASSISTANT, store=False),
    ),
    "R09": (_input(_USER, *_PAIR), _input(_USER, _function(None), _output(None))),
    "R10": (_input(_USER, *_PAIR), _input(_USER, _function(""), _output(""))),
    "R11": (_input(_USER, *_PAIR), _input(_USER, _function(_LONG), _output(_LONG))),
    "R12": (_input(_USER, *_PAIR), _input(_USER, _function(name=None), _output())),
    "R13": (
        _input(_USER, *_PAIR),
        _input(_USER, _function(arguments={}), _output()),
    ),
    "R14": (
        _input(_USER, *_PAIR),
        _input(_USER, _function(), _function(), _output()),
    ),
    "R15": (
        _input(_USER, *_PAIR),
        _input(_USER, _function(), _output("a", {"ok": 1})),
    ),
    "R20": (_input(_USER, *_PAIR), _input(_USER, _output())),
    "R21": (
        _input(_USER, *_PAIR),
        _input(_USER, _function(), _output(), _output()),
    ),
    "R24": (
        _input(_USER, _ASSISTANT),
        _input(_USER, _message("assistant", "input_text")),
    ),
    "R25": (
        _input(_REASONING, _ASSISTANT),
        _input({"type": "reasoning", "encrypted_content": "…"}, _ASSISTANT),
    ),
    "R26": (_input(_REASONING, _ASSISTANT), _input(_USER, _REASONING)),
    "R27": (_input(_USER, *_PAIR), _input(_USER, _function())),
    "R28": (
        _input(_USER, _REASONING, _function(id="fc_1"), _output()),
        _input(_USER, _function(id="fc_1"), _output()),
    ),
}
