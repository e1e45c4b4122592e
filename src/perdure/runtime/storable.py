"""Model responses as the log can store them: unique call ids, JSON arguments, valid Unicode."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from perdure.core.conversation.messages import Answer, RequestedCall
from perdure.core.text import storable_text
from perdure.runtime.ids import secret_id


def storable_answer(answer: Answer) -> tuple[Answer, Mapping[str, str]]:
    """Return the answer to record and, by call id, the problems of invalid arguments."""
    calls: dict[str, RequestedCall] = {}
    problems: dict[str, str] = {}
    for call in answer.calls:
        call_id = storable_text(call.id)
        if not call_id or call_id in calls:
            call_id = secret_id("call")
        params, problem = _storable_params(call.params)
        calls[call_id] = RequestedCall(call_id, storable_text(call.tool), params)
        if problem is not None:
            problems[call_id] = f"The arguments are {problem}; give a JSON object."
    thinking = None if answer.thinking is None else storable_text(answer.thinking)
    text = storable_text(answer.text)
    if not calls and text is answer.text and thinking is answer.thinking:
        return answer, problems
    return replace(answer, text=text, thinking=thinking, calls=tuple(calls.values())), problems


def _storable_params(params: Any) -> tuple[dict[str, Any], str | None]:
    try:
        value: Any = msgspec.json.decode(msgspec.json.encode(params))
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        return _displayable(params), f"not JSON ({storable_text(str(error))})"
    if not isinstance(value, dict):
        return {"value": value}, f"{type(params).__name__}, not an object"
    return value, None


def _displayable(params: Any) -> dict[str, Any]:
    """Return a JSON rendering of arguments that are not JSON."""
    try:
        text = json.dumps(params, ensure_ascii=False, default=repr, skipkeys=True)
    except ValueError:
        text = json.dumps(repr(params))
    value = json.loads(storable_text(text))
    return value if isinstance(value, dict) else {"value": value}
