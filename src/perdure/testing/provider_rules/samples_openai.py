"""For each of OpenAI's rules a request that passes it and one that fails it."""

from typing import Any, Final

Body = dict[str, Any]
TOOL: Final = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}


def _ask(*messages: Any, **more: Any) -> Body:
    return {"messages": list(messages), **more}


def _called(*calls: Any, **more: Any) -> Body:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


def _call(call_id: Any = "a", name: Any = "read", arguments: Any = "{}", **more: Any) -> Body:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function, **more}


def _result(call_id: Any = "a", content: Any = "ok") -> Body:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _tooled(call: Body | None = None, *results: Body) -> Body:
    asked = call or _call()
    told = results or (_result(asked.get("id")),)
    return _ask(_HI, _called(asked), *told, tools=[TOOL])


_HI: Final = {"role": "user", "content": "hi"}
_HELLO: Final = {"role": "assistant", "content": "hello"}
_LONG: Final = "x" * 65
_FUNCTION: Final = {"name": "read", "arguments": "{}"}

CHAT: Final[dict[str, tuple[Body, Body]]] = {
    "C01": (_ask(_HI), {"messages": "hi"}),
    "C02": (_ask(_HI), _ask()),
    "C03": (_ask(_HI), _ask({"role": "human", "content": "hi"})),
    "C04": (_ask(_HI), _ask({"role": "user", "content": []})),
    "C05": (_tooled(), _ask(_HI, {"role": "assistant", "content": None})),
    "C06": (_ask(_HI), _ask({"role": "user", "content": 3})),
    "C07": (
        _ask({"role": "user", "content": [{"type": "text", "text": "hi"}]}),
        _ask({"role": "user", "content": [{"type": "tool_result", "content": "hi"}]}),
    ),
    "C08": (_tooled(), _ask({**_HI, "tool_calls": [_call()]}, _result(), tools=[TOOL])),
    "C09": (_ask(_HI, _HELLO), _ask(_HI, {**_HELLO, "tool_calls": []})),
    "C10": (_tooled(), _tooled({"type": "function", "function": _FUNCTION}, _result())),
    "C11": (_tooled(_call("x" * 40)), _tooled(_call("x" * 41))),
    "C12": (_tooled(), _tooled(_call(type="tool"))),
    "C13": (_tooled(), _tooled(_call(name="read file"))),
    "C14": (_tooled(_call(name="x" * 64)), _tooled(_call(name=_LONG))),
    "C15": (_tooled(), _tooled(_call(arguments={}))),
    "C16": (_tooled(_call(arguments='{"a": 1}')), _tooled(_call(arguments='{"a": '))),
    "C17": (
        _ask(_HI, _called(_call("a"), _call("b")), _result("a"), _result("b"), tools=[TOOL]),
        _ask(_HI, _called(_call("a"), _call("a")), _result("a"), tools=[TOOL]),
    ),
    "C20": (_tooled(), _ask(_HI, _called(_call()), _HI, tools=[TOOL])),
    "C21": (_tooled(), _ask(_HI, _called(_call()), _result(), _result(None), tools=[TOOL])),
    "C22": (_tooled(), _ask(_HI, _result())),
    "C23": (_tooled(), _tooled(None, _result(), _result())),
    "C24": (_ask(_HI, tools=[TOOL], parallel_tool_calls=True), _ask(_HI, parallel_tool_calls=True)),
    "C25": (_ask(_HI, tools=[TOOL]), _ask(_HI, tools=[])),
}


def _send(*items: Any, **more: Any) -> Body:
    return {"input": list(items), **more}


def _item(kind: str, call_id: Any = "a", **more: Any) -> Body:
    return {"type": kind, "call_id": call_id, **more}


def _function(call_id: Any = "a", **more: Any) -> Body:
    return _item("function_call", call_id, **{"name": "read", "arguments": "{}", **more})


def _output(call_id: Any = "a", output: Any = "ok") -> Body:
    return _item("function_call_output", call_id, output=output)


def _said(role: str, kind: str, **more: Any) -> Body:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": "x"}], **more}


_ASKED: Final = _said("user", "input_text")
_ANSWERED: Final = _said("assistant", "output_text")
_PAIR: Final = (_function(), _output())
_REASONING: Final = {"type": "reasoning", "summary": [], "encrypted_content": "…"}

RESPONSES: Final[dict[str, tuple[Body, Body]]] = {
    "R01": (_send(_ASKED), {}),
    "R02": (
        _send(_ASKED, previous_response_id="resp_1"),
        _send(_ASKED, previous_response_id="nowhere"),
    ),
    "R03": (_send(_ASKED), _send({"type": "tool_use"})),
    "R04": (_send(_REASONING, {**_ANSWERED, "id": "msg_1"}), _send({**_ASKED, "id": ""})),
    "R05": (_send({**_ASKED, "id": "msg_1"}), _send({**_ASKED, "id": f"msg_{_LONG}"})),
    "R06": (_send({**_ASKED, "id": "msg_1"}), _send({**_ASKED, "id": "call_1"})),
    "R07": (
        _send({**_ASKED, "id": "msg_1"}, {**_ASKED, "id": "msg_2"}),
        _send({**_ASKED, "id": "msg_1"}, {**_ASKED, "id": "msg_1"}),
    ),
    "R08": (
        _send(_REASONING, _ANSWERED, store=False),
        _send({"type": "reasoning", "summary": [], "id": "rs_1"}, _ANSWERED, store=False),
    ),
    "R09": (_send(_ASKED, *_PAIR), _send(_ASKED, _function(None), _output(None))),
    "R10": (_send(_ASKED, *_PAIR), _send(_ASKED, _function(""), _output(""))),
    "R11": (_send(_ASKED, *_PAIR), _send(_ASKED, _function(_LONG), _output(_LONG))),
    "R12": (_send(_ASKED, *_PAIR), _send(_ASKED, _function(name=None), _output())),
    "R13": (_send(_ASKED, *_PAIR), _send(_ASKED, _function(arguments={}), _output())),
    "R14": (_send(_ASKED, *_PAIR), _send(_ASKED, _function(), _function(), _output())),
    "R15": (_send(_ASKED, *_PAIR), _send(_ASKED, _function(), _output("a", {"ok": 1}))),
    "R20": (_send(_ASKED, *_PAIR), _send(_ASKED, _output())),
    "R21": (_send(_ASKED, *_PAIR), _send(_ASKED, _function(), _output(), _output())),
    "R24": (_send(_ASKED, _ANSWERED), _send(_ASKED, _said("assistant", "input_text"))),
    "R25": (
        _send(_REASONING, _ANSWERED),
        _send({"type": "reasoning", "encrypted_content": "…"}, _ANSWERED),
    ),
    "R26": (_send(_REASONING, _ANSWERED), _send(_ASKED, _REASONING)),
    "R27": (_send(_ASKED, *_PAIR), _send(_ASKED, _function())),
    "R28": (
        _send(_ASKED, _REASONING, _function(id="fc_1"), _output()),
        _send(_ASKED, _function(id="fc_1"), _output()),
    ),
}
