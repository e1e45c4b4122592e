"""Model responses as the log can store them: unique call ids, JSON arguments, valid Unicode."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from perdure.core.conversation.messages import Answer, RequestedCall
from perdure.core.conversation.repair.json_values import json_value
from perdure.core.json_depth import MAX_DEPTH, TOO_DEEP, encode_value, is_deeper
from perdure.core.text import storable_text
from perdure.errors import Refused
from perdure.ids import secret_id


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
    # The native response has the arguments too.
    native = answer.native if _is_storable_native(answer.native) else None
    requested = tuple(calls.values())
    answer = replace(answer, native=native, text=text, thinking=thinking, calls=requested)
    return answer, problems


def _is_storable_native(native: bytes | None) -> bool:
    return native is None or not is_deeper(native, MAX_DEPTH)


def _storable_params(params: Any) -> tuple[dict[str, Any], str | None]:
    try:
        value: Any = msgspec.json.decode(encode_value(params, "a value"))
    except Refused:
        bounded = json_value(params)
        return bounded if isinstance(bounded, dict) else {"value": bounded}, TOO_DEEP
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        return _displayable(params), f"not JSON ({storable_text(str(error))})"
    if isinstance(value, str) and is_deeper(value, MAX_DEPTH):
        return {"value": value}, TOO_DEEP  # a parser of JSON has given up
    if not isinstance(value, dict):
        return {"value": value}, f"{type(params).__name__}, not an object"
    return value, None


def _displayable(params: Any) -> dict[str, Any]:
    """Return a JSON rendering of arguments that are not JSON."""
    try:
        text = json.dumps(params, ensure_ascii=False, default=repr, skipkeys=True)
    except (ValueError, RecursionError):
        text = json.dumps(repr(params))
    value = json.loads(storable_text(text))
    return value if isinstance(value, dict) else {"value": value}
