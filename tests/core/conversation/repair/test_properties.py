"""Whatever a history holds: every provider takes what is made of it, and nothing valid is lost."""

import json
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any, Final, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.conversation.repair.accepted import MAKERS, accepted
from tests.core.conversation.repair.histories import (
    MODEL,
    OBJECTS,
    SHARES,
    Evil,
    History,
    Hostile,
    random_history,
    signed,
    valid_history,
)
from tests.core.conversation.repair.oracle import (
    calls_of_messages,
    pairs_of_log,
    pairs_of_messages,
    texts_of_messages,
)

from perdure.core.conversation.repair import LOST_START, repair
from perdure.core.conversation.repair.own_messages import NO_TEXT
from perdure.core.conversation.repair.quick_check import is_certainly_valid
from perdure.core.providers.catalog import Format
from perdure.core.providers.formats import render
from perdure.core.transfer.event_log import conversations
from perdure.testing.provider_rules import check

FORMATS: Final[tuple[Format, ...]] = get_args(Format)
OURS: Final = (LOST_START, NO_TEXT)  # what repair may put where something is missing
SLOW_IS_FINE: Final = (HealthCheck.too_slow,)  # the machine's business
TOOL: Final = {"name": "read", "input_schema": {"type": "object"}}


def messages_of(history: History) -> list[list[Any]]:
    """The list itself, or the conversation of each agent of a log."""
    if not history.is_log:
        return [history.items]
    return list(conversations(history.items).by_agent.values())


def refusals(messages: Any, wanted: Format, **options: Any) -> list[str]:
    """What a provider would say to the messages as they are rendered."""
    rendered = render(messages, wanted, model=MODEL, **options)
    body = {"max_tokens": 2048, "tools": [TOOL], "store": False, **rendered}
    return [str(finding) for finding in check(body, wanted, signed=signed)]


def holds(history: History) -> None:
    """All that is promised of one history."""
    survived = 0
    for messages in messages_of(history):
        repaired = repair(messages)
        again = repair(repaired.messages)
        assert again.messages == repaired.messages
        assert again.issues == ()
        survived += pairs_of_messages(repaired.messages)
        assert calls_of_messages(repaired.messages) == pairs_of_messages(repaired.messages)
        kept = [text for text in texts_of_messages(repaired.messages) if text not in OURS]
        assert "\n\n".join(kept) == "\n\n".join(texts_of_messages(messages))
        unchanged = len(messages) == len(repaired.messages) and all(
            one is other or isinstance(one, Hostile)  # which comes back as the object it hides
            for one, other in zip(messages, repaired.messages, strict=True)
        )
        assert unchanged == (not repaired.issues)
        for wanted in FORMATS:
            assert refusals(messages, wanted) == []
    count = pairs_of_log if history.is_log else pairs_of_messages
    assert survived == count(history.items)


def run(seeds: range) -> None:
    """Hold for many histories, and for enough of each kind."""
    shares: Counter[str] = Counter()
    for seed in seeds:
        history = random_history(seed)
        shares.update(history.shares)
        try:
            holds(history)
        except Exception as error:
            error.add_note(f"random_history({seed})")
            raise
    for share in SHARES:
        print(f"{share}: {shares[share] / len(seeds):.0%} of {len(seeds):,} histories")  # noqa: T201
        assert shares[share] >= len(seeds) / 10


def test_every_provider_takes_any_history_and_no_pair_is_lost() -> None:
    """G6 S2.32 S2.34 S2.44 S2.49 S2.58"""
    run(range(4_000))


@pytest.mark.soak
def test_every_provider_takes_a_hundred_thousand_histories() -> None:
    """G6 S2.58"""
    run(range(1_000_000, 1_100_000))


def test_a_valid_history_comes_back_equal() -> None:
    """S2.53 S2.58"""
    for seed in range(2_000):
        messages = valid_history(seed)
        repaired = repair(messages)
        assert repaired.messages == messages, seed
        assert repaired.issues == (), seed


def test_what_looks_sound_needs_no_repair() -> None:
    """The short way out says nothing else than the long way."""
    seen = Counter[bool]()
    for messages in candidates():
        seen[is_certainly_valid(messages)] += 1
        if is_certainly_valid(messages):
            padded = [*messages, {"role": "robot", "content": "x"}]  # no short way for this one
            assert repair(padded).messages == messages
    assert min(seen[True], seen[False]) > 100


def candidates() -> Iterator[Any]:
    for seed in range(600):
        yield valid_history(seed)
        yield from messages_of(random_history(seed))


# --- with hypothesis, which finds the smallest that fails ---------------------------------------

texts = st.text(st.characters(codec=None, categories=None), max_size=5)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
things = plain | st.binary(max_size=3) | st.sampled_from(OBJECTS).map(lambda make: make())
ids = st.sampled_from(["a", "b", "", "é", "x" * 50]) | st.none() | st.integers()
kinds = st.sampled_from(["text", "tool_use", "tool_result", "thinking", "image", "reasoning"])
blocks = st.fixed_dictionaries(
    {"type": kinds},
    optional={
        "text": texts | things,
        "id": ids,
        "tool_use_id": ids,
        "name": texts | things,
        "input": things,
        "content": things,
        "is_error": st.booleans() | things,
        "thinking": texts,
        "signature": texts | things,
        "source": things,
        "encrypted_content": texts | things,
        "cache_control": things,
    },
)
calls = st.fixed_dictionaries(
    {},
    optional={
        "id": ids,
        "function": st.fixed_dictionaries({}, optional={"name": texts, "arguments": texts | plain}),
    },
)
roles = st.sampled_from(["user", "assistant", "tool", "system", "developer", "robot"])
messages = st.fixed_dictionaries(
    {"role": roles | things},
    optional={
        "content": texts | st.lists(blocks | things, max_size=4) | things,
        "tool_calls": st.lists(calls | things, max_size=3) | things,
        "tool_call_id": ids | things,
        "raw_content": st.lists(blocks, max_size=2) | things,
        "model": texts | things,
    },
)


@settings(max_examples=600, suppress_health_check=SLOW_IS_FINE)
@given(st.lists(messages | things, max_size=6))
def test_arbitrary_objects_are_repaired(given_messages: list[Any]) -> None:
    """S2.49 S2.58"""
    holds(History(given_messages, is_log=False))


@settings(max_examples=200, suppress_health_check=SLOW_IS_FINE)
@given(things)
def test_what_is_no_list_of_messages_is_taken_for_an_empty_one(thing: Any) -> None:
    """S2.47"""
    if type(thing) is not list:
        assert repair(thing).messages == []
        assert [issue.index for issue in repair(thing).issues] == [-1]
    for wanted in FORMATS:
        assert refusals(thing, wanted) == []


@settings(max_examples=300, suppress_health_check=SLOW_IS_FINE)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"type": st.sampled_from(["user", "assistant", "tool_call", "tool_result"]) | things},
            optional={"timestamp": st.integers() | things, "data": plain | things},
        )
        | things,
        max_size=6,
    )
)
def test_a_log_of_arbitrary_objects_is_read(events: list[Any]) -> None:
    """S2.28 S2.34"""
    holds(History(events, is_log=True))
    assert conversations(Evil()).by_agent == {}


def test_nothing_that_was_given_is_changed() -> None:
    """S2.59"""
    for seed in range(500):
        history, same = random_history(seed), random_history(seed)
        for one in messages_of(history):
            repair(one)
            for wanted in FORMATS:
                render(one, wanted)
        assert shown(history.items) == shown(same.items)


def shown(items: list[Any]) -> list[str]:
    """A history as text, objects by their type."""
    return [json.dumps(_plain(item, 8), sort_keys=True) for item in items]


def _plain(item: Any, depth: int) -> Any:
    if type(item) is dict and depth:
        return [[_plain(key, 1), _plain(inner, depth - 1)] for key, inner in item.items()]
    if type(item) is list and depth:
        return [_plain(inner, depth - 1) for inner in item]
    return item if type(item) in (str, int, bool) else type(item).__name__


# --- what one provider takes as it is -----------------------------------------------------------


@pytest.mark.parametrize("wanted", FORMATS)
def test_what_a_provider_takes_comes_back_equal_in_its_own_shape(wanted: Format) -> None:
    """S2.53 S2.58"""
    seen, kinds = 0, set[str]()
    for seed in range(600):
        messages = accepted(seed, wanted)
        if messages is None:
            continue
        seen += 1
        kinds |= kinds_in(messages)
        repaired = repair(messages)
        assert (repaired.messages, repaired.issues) == (messages, ()), seed
    assert seen > 500
    assert kinds >= KINDS[wanted]


# Of Anthropic the renderer makes a request. An empty list is nothing to send; and an answer that
# was stored without reasoning, as older models give it, keeps its id.
LICENCE: Final[dict[Format, set[str]]] = {
    "openai-chat": {"C02"},
    "openai-responses": {"R01", "R28"},
}


@pytest.mark.parametrize("wanted", LICENCE)
def test_what_was_broken_stays_in_its_shape_and_becomes_what_the_provider_takes(
    wanted: Format,
) -> None:
    """G6 S2.58"""
    for seed in range(300):
        messages = accepted(seed, wanted) or [{"role": "user", "content": "hi"}]
        random = Random(seed)  # noqa: S311 - the same damage every time
        place = random.randrange(len(messages))
        broken = [*messages[:place], *messages[place + 1 :]]
        broken.insert(random.randrange(len(broken) + 1), random.choice(messages))
        holds(History(broken, is_log=False))
        key, _ = MAKERS[wanted]
        body = {"max_tokens": 2048, "tools": [TOOL], "store": False, key: repair(broken).messages}
        told = {str(finding).split(maxsplit=1)[0] for finding in check(body, wanted)}
        assert told <= LICENCE[wanted], seed


KINDS: Final[dict[Format, set[str]]] = {
    "anthropic": {"text", "image", "document", "search_result", "thinking", "redacted_thinking"}
    | {"server_tool_use", "web_search_tool_result", "tool_use", "tool_result"},
    "openai-chat": {"text", "image_url", "input_audio", "file", "refusal", "function"},
    "openai-responses": {"message", "function_call", "function_call_output", "reasoning"}
    | {"input_text", "input_image", "input_file", "output_text", "refusal"},
}


def kinds_in(value: Any) -> set[str]:
    """Every `type` in a JSON value."""
    if isinstance(value, list):
        return {kind for inner in value for kind in kinds_in(inner)}
    if not isinstance(value, dict):
        return set()
    own = {str(value["type"])} if "type" in value else set()
    return own | kinds_in(list(value.values()))
