"""A model's answer as the log can keep it: told-apart calls, JSON arguments, whole characters."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from perdure.core.conversation.messages import Answer, AskedCall
from perdure.runtime.ids import secret_id


def storable_text(text: str) -> str:
    """The text with a mark for each half character (a lone surrogate), which no store can keep.

    Two halves that came in two pieces are one character again.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return whole.encode("utf-8", "replace").decode()
    return text


def storable(answer: Answer) -> tuple[Answer, Mapping[str, str]]:
    """The answer to record, and by call id why a call cannot run with what the model gave."""
    calls: dict[str, AskedCall] = {}
    wrong: dict[str, str] = {}
    for asked in answer.calls:
        call_id = storable_text(asked.id)
        if not call_id or call_id in calls:
            call_id = secret_id("call")
        params, problem = _params(asked.params)
        calls[call_id] = AskedCall(call_id, storable_text(asked.tool), params)
        if problem is not None:
            wrong[call_id] = f"The arguments are {problem}; give a JSON object."
    thinking = None if answer.thinking is None else storable_text(answer.thinking)
    text = storable_text(answer.text)
    if not calls and text is answer.text and thinking is answer.thinking:
        return answer, wrong
    return replace(answer, text=text, thinking=thinking, calls=tuple(calls.values())), wrong


def _params(given: Any) -> tuple[dict[str, Any], str | None]:
    try:
        value: Any = msgspec.json.decode(msgspec.json.encode(given))
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        return _shown(given), f"not JSON ({storable_text(str(error))})"
    if not isinstance(value, dict):
        return {"value": value}, f"{type(given).__name__}, not an object"
    return value, None


def _shown(given: Any) -> dict[str, Any]:
    """What can be shown of arguments that are not JSON."""
    try:
        text = json.dumps(given, ensure_ascii=False, default=repr, skipkeys=True)
    except ValueError:
        text = json.dumps(repr(given))
    value = json.loads(storable_text(text))
    return value if isinstance(value, dict) else {"value": value}
