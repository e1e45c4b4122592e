"""OpenAI's Responses: what was answered before, and how an answer is said in one piece."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from perdure.testing.endpoint.exact import same, same_block
from perdure.testing.endpoint.openai_stream import events, failed
from perdure.testing.endpoint.play import Answered, Body, Change, Dialect, Play, Private
from perdure.testing.endpoint.response import response
from perdure.testing.provider_rules.openai_chat import is_object
from perdure.testing.provider_rules.rule import objects

_SHARED: Final = frozenset({"message", "function_call"})  # what another model can read as well
_UNREADABLE: Final = (
    "The encrypted content for item {id} could not be verified. Reason: Encrypted content could "
    "not be decrypted or parsed."
)
_LOST: Final = "Item '{id}' of type 'reasoning' was not given back with the items that it led to."
_TOUCHED: Final = "Item '{id}' of type '{type}' is not as it was in the original response."


def answers(body: Body) -> list[Answered]:
    """The runs of output items between what the user and the tools said."""
    found: list[Answered] = []
    run: list[Body] = []
    for place, item in objects(body.get("input")):
        if not is_output(item):
            run = []
            continue
        if not run:
            found.append(Answered(f"input[{place}]", run))
        run.append(item)
    return found


def is_output(item: Mapping[str, Any]) -> bool:
    """Whether an item is of the model's making."""
    kind = str(item.get("type", "message"))
    if kind == "message":
        return item.get("role") == "assistant"
    return not kind.endswith(("_output", "_response"))


def changes(answered: Answered, sent: list[Body], private: Private) -> Iterator[Change]:
    """The first item that is not as it was sent."""
    posted = list(answered.blocks)
    shared = [item for item in sent if item["type"] in _SHARED]
    readable = [item for item in sent if item["type"] != "reasoning"]
    allowed = {"must": (sent,), "may": (sent, shared), "not": (readable, shared)}[private]
    exact = private == "must"
    places = [_first_change(posted, wanted, exact=exact) for wanted in allowed]
    if None in places:
        return
    place = places[0] or 0
    wanted = allowed[0][place] if place < len(allowed[0]) else {"type": "", "id": ""}
    given = posted[place] if place < len(posted) else {}
    yield _change(answered.where, given, wanted)


def _change(where: str, given: Mapping[str, Any], wanted: Body) -> Change:
    if given.get("type") == "reasoning":
        says = _UNREADABLE.format(id=given.get("id"))
        return Change(where, says, "invalid_encrypted_content")
    says = _LOST if wanted["type"] == "reasoning" else _TOUCHED
    return Change(where, says.format(id=wanted.get("id"), type=wanted["type"]))


def _first_change(posted: list[Body], sent: list[Body], *, exact: bool) -> int | None:
    for place, (theirs, ours) in enumerate(zip(posted, sent, strict=False)):
        if not _same_item(theirs, ours, exact=exact):
            return place
    return None if len(posted) == len(sent) else min(len(posted), len(sent))


def _same_item(posted: Body, sent: Body, *, exact: bool) -> bool:
    if posted.get("type") == "item_reference":
        return bool(posted.get("id") == sent.get("id"))
    if sent["type"] == "function_call" and not is_object(sent["arguments"]):
        # half of them are refused themselves, so anything may stand for them
        return bool(posted.get("call_id") == sent["call_id"])
    if not exact and _same_arguments(posted, sent):
        posted = {**posted, "arguments": sent["arguments"]}  # another may write the same otherwise
    lacking = ["id", "status"]
    if sent["type"] == "reasoning" and posted.get("id"):
        lacking.append("encrypted_content")  # what is stored there is found by its id
    return same_block(_read(posted), _read(sent), may_lack=lacking)


def _same_arguments(posted: Body, sent: Body) -> bool:
    told = posted.get("arguments")
    if sent["type"] != "function_call" or not isinstance(told, str) or not is_object(told):
        return False
    return same(json.loads(told), json.loads(sent["arguments"]))


def _read(item: Body) -> Body:
    """An item as the provider reads it: words as parts, nothing where there is nothing."""
    if item.get("type", "message") != "message":
        return item
    content = item.get("content")
    if isinstance(content, str):
        content = [{"type": "output_text", "text": content}]
    parts = [
        {key: value for key, value in part.items() if key != "logprobs" and value != []}
        for _, part in objects(content)
    ]
    return {**item, "type": "message", "content": parts}


def whole(play: Play) -> Body:
    """The answer in one piece."""
    return response(play)


RESPONSES: Final = Dialect(answers, changes, whole, events, failed)
