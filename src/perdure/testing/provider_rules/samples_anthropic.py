"""Samples for Anthropic's rules: a request that passes and one that fails each."""

from typing import Any, Final

Body = dict[str, Any]
TOOL: Final = {"name": "read", "input_schema": {"type": "object"}}
THINKING: Final = {"type": "enabled", "budget_tokens": 1024}
THOUGHT: Final = {"type": "thinking", "thinking": "hm", "signature": "signed:hm"}


def _request(*messages: Any, **more: Any) -> Body:
    return {"messages": list(messages), "max_tokens": 2048, **more}


def _user(*content: Any) -> Body:
    return {"role": "user", "content": list(content)}


def _answer(*content: Any) -> Body:
    return {"role": "assistant", "content": list(content)}


def _text(text: str, **more: Any) -> Body:
    return {"type": "text", "text": text, **more}


def _call(call_id: Any = "a", **more: Any) -> Body:
    return {"type": "tool_use", "id": call_id, "name": "read", "input": {}, **more}


def _result(call_id: Any = "a", content: Any = "ok", **more: Any) -> Body:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def _with_tools(*more: Any, call: Body | None = None, result: Body | None = None) -> Body:
    response, results = _answer(call or _call()), _user(result or _result())
    return _request(_HI, response, results, *more, tools=[TOOL])


def _thinking(**more: Any) -> Body:
    return _request(_HI, **{"thinking": THINKING, **more})


def _tools(*tools: Any) -> Body:
    return _request(_HI, tools=list(tools))


_HI: Final = {"role": "user", "content": "hi"}
_HELLO: Final = {"role": "assistant", "content": "hello"}
_MARK: Final = {"cache_control": {"type": "ephemeral"}}
_SEARCH: Final = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}

SAMPLES: Final[dict[str, tuple[Body, Body]]] = {
    "A00": (_request(_HI), _request({"role": "user", "content": "half \ud83d"})),
    "A01": (_request(_HI), {"messages": "hi", "max_tokens": 1}),
    "A02": (_request(_HI), _request()),
    "A03": (_request(_HI, max_tokens=1), _request(_HI, max_tokens=0)),
    "A04": (_request(_HI, system=""), _request(_HI, system=[_text("be kind"), _text("")])),
    "A05": (_request(_HI, system=[_text("be kind")]), _request(_HI, system=[_text(" ")])),
    "A06": (_request(_HI), _request({**_HI, "id": "m1"})),
    "A07": (
        _request(_HI, system="be kind"),
        _request({"role": "system", "content": "be kind"}, _HI),
    ),
    "A08": (_request(_HI), _request({"role": "tool", "content": "hi"})),
    "A09": (_request(_HI), _request({"role": "user", "content": None})),
    "A10": (_request(_user(_text("hi"))), _request(_user("hi"))),
    "A11": (_request(_HI), _request({"role": "user", "content": ""})),
    "A12": (_request(_HI, _HELLO, _HI), _request(_HI, {"role": "assistant", "content": ""}, _HI)),
    "A13": (_request(_user(_text("hi"))), _request(_user(_text("hi"), _text("")))),
    "A13s": (_with_tools(result=_result("a", "")), _with_tools(result=_result("a", [_text("")]))),
    "A14": (_request(_HI), _request({"role": "user", "content": " \n"})),
    "A14s": (_request(_user(_text("hi"))), _request(_user(_text("hi"), _text(" ")))),
    "A15": (_request(_user(_text("hi"))), _request(_user({"type": "video", "source": {}}))),
    "A16": (_request(_user(_text("hi", **_MARK))), _request(_user(_text("", **_MARK)))),
    "A17": (_request(_HI, _HELLO, _HI), _request(_HI, _HI)),
    "A18": (_request(_HI), _request(_HELLO, _HI)),
    "A20": (
        _with_tools(),
        _with_tools(call=_call("functions.Bash:0"), result=_result("functions.Bash:0")),
    ),
    "A21": (_with_tools(), _with_tools(call=_call(name="read file"))),
    "A22": (_with_tools(), _with_tools(call=_call(input="{}"))),
    "A23": (_with_tools(), _with_tools(_answer(_call()), _user(_result()))),
    "A24": (
        _request(_HI, _answer(_SEARCH, _text("found")), _HI),
        _request(_HI, _answer({**_SEARCH, "id": "toolu_1"}, _text("found")), _HI),
    ),
    "A25": (_with_tools(), _with_tools(result=_result(None))),
    "A26": (_with_tools(), _with_tools(result=_result("a", {"ok": True}))),
    "A27": (
        _with_tools(result=_result("a", "no such file", is_error=True)),
        _with_tools(result=_result("a", "", is_error=True)),
    ),
    "A30": (
        _request(_HI, _answer(THOUGHT, _text("so")), _HI),
        _request(_HI, _answer({"type": "thinking", "thinking": "hm"}, _text("so")), _HI),
    ),
    "A31": (
        _request(_HI, _answer(THOUGHT, _text("so")), _HI),
        _request(_HI, _answer({**THOUGHT, "signature": "other"}, _text("so")), _HI),
    ),
    "A32": (
        _request(_HI, _answer(THOUGHT, _text("so")), _HI),
        _request(_HI, _answer({**THOUGHT, "thinking": ""}, _text("so")), _HI),
    ),
    "A34": (
        _request(_HI, _answer(THOUGHT, _text("so")), _HI),
        _request(_HI, _answer(_text("so"), THOUGHT), _HI),
    ),
    "A35": (
        _request(_HI, _answer(THOUGHT, _call()), _user(_result()), thinking=THINKING, tools=[TOOL]),
        _request(_HI, _answer(_call()), _user(_result()), thinking=THINKING, tools=[TOOL]),
    ),
    "A40": (_thinking(), _thinking(thinking={"type": "enabled", "budget_tokens": 100})),
    "A41": (_thinking(), _thinking(max_tokens=1024)),
    "A42": (
        _thinking(tools=[TOOL], tool_choice={"type": "auto"}),
        _thinking(tools=[TOOL], tool_choice={"type": "any"}),
    ),
    "A43": (_thinking(temperature=1), _thinking(temperature=0)),
    "A44": (_tools(TOOL), _tools(TOOL, TOOL)),
    "A45": (_tools(TOOL), _tools({"name": "read"})),
    "A46": (_tools(TOOL), _tools({"name": "read", "input_schema": {"type": "array"}})),
    "A47": (
        _tools(TOOL),
        _tools({"name": "read", "input_schema": {"type": "object", "oneOf": []}}),
    ),
    "A48": (
        _request(_user(*[_text(str(n), **_MARK) for n in range(4)])),
        _request(_user(*[_text(str(n), **_MARK) for n in range(5)])),
    ),
    "A50": (_with_tools(), _request(_HI, _answer(_call()), _user(_text("well?")), tools=[TOOL])),
    "A51": (_with_tools(), _request(_user(_result()), tools=[TOOL])),
    "A52": (
        _with_tools(),
        _request(_HI, _answer(_call()), _user(_result(), _result()), tools=[TOOL]),
    ),
    "A54": (_with_tools(), _request(_HI, _answer(_call()), _user(_result()))),
    "A60": (_request(_HI, _HELLO, _HI), _request(_HI, _HELLO)),
    "A61": (_request(_HI, _HELLO, _HI), _request(_HI, {"role": "assistant", "content": "well, "})),
    "A62": (
        _request(_HI, _answer(THOUGHT, _text("so")), _HI),
        _request(_HI, _answer(THOUGHT, _text("so"))),
    ),
}
