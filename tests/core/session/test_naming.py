"""Names: which ids there can be, and that no two sessions share a stream."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.session import naming as index
from perdure.core.session.naming import KeyRecord, SessionRecord, check_id, check_tenant
from perdure.errors import Refused

letters = st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"])
ids = st.text(letters | st.sampled_from("%/#|.25FC37"), min_size=1, max_size=20)
tenants = ids | st.just("")


@pytest.mark.parametrize(
    "good", ["a", "x" * 200, "order-991", "../../etc/passwd", "a/b#2|c%2F", "ž☃𝄞", " ", "shop:ctx"]
)
def test_what_can_be_an_id(good: str) -> None:
    """S2.16 S4.14"""
    assert check_id(good) == good


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "x" * 201,
        "a\x00b",
        "a\nb",
        "\x1b[2J",
        "\x7f",
        "\x85",
        "a\u2028b",
        "\ud800",
        None,
        7,
        b"x",
    ],
)
def test_what_cannot_be_an_id(bad: object) -> None:
    with pytest.raises(Refused) as caught:
        check_id(bad)
    assert caught.value.code == "ID_INVALID"
    caught.value.message.encode()  # can be shown and logged
    assert len(caught.value.message) < 120
    assert "\n" not in caught.value.message


def test_only_a_tenant_may_be_empty() -> None:
    assert check_tenant("") == ""
    with pytest.raises(Refused, match="tenant name"):
        check_tenant("a\x00")


@given(tenants, ids, st.integers(1, 12))
def test_a_stream_says_whose_it_is(tenant: str, session_id: str, generation: int) -> None:
    assert index.parse_session_stream(index.session_stream(tenant, session_id, generation)) == (
        tenant,
        session_id,
    )


names = st.tuples(tenants, ids, st.integers(1, 3))


@given(names, names)
def test_no_two_sessions_share_a_stream_or_an_entry(
    one: tuple[str, str, int], other: tuple[str, str, int]
) -> None:
    """S4.14"""
    same_stream = index.session_stream(*one) == index.session_stream(*other)
    assert same_stream == (one == other)
    same_key = index.session_key(*one[:2]) == index.session_key(*other[:2])
    assert same_key == (one[:2] == other[:2])


@pytest.mark.parametrize(
    "one, other",
    [
        (("a", "b/c"), ("a/b", "c")),
        (("a", "b#2"), ("a", "b")),
        (("a", "%2F"), ("a", "/")),
        (("", "a/b"), ("a", "b")),
    ],
)
def test_names_made_to_look_alike_do_not(one: tuple[str, str], other: tuple[str, str]) -> None:
    made = [
        index.session_stream(*name, generation) for name in (one, other) for generation in (1, 2)
    ]
    assert len(set(made)) == 4
    assert index.session_key(*one) != index.session_key(*other)


def test_a_path_is_only_letters_of_a_name() -> None:
    stream = index.session_stream("..", "../../etc/passwd")
    assert stream.count("/") == 2
    assert index.parse_session_stream(stream) == ("..", "../../etc/passwd")


@pytest.mark.parametrize("stream", ["", "delivery:1", "lock:x", "s/a", "s/a/b/c", "t/a/b"])
def test_other_streams_are_nobodys_session(stream: str) -> None:
    assert index.parse_session_stream(stream) is None


def test_a_worker_claims_the_sessions_of_one_agent() -> None:
    assert index.stream_kind("shop") != index.stream_kind("other")


def test_the_records_survive_their_entries() -> None:
    whole = SessionRecord(
        id="s",
        tenant="t",
        agent="a",
        task_id="task_1",
        state="waiting",
        created_at=1,
        updated_at=2,
        metadata={"k": [1, None, "ž"]},
        title="hello",
        problem="TOOL_MISSING",
        problem_text="no tool",
        parent="s_0",
    )
    for record in (whole, SessionRecord(id="s", agent="a")):
        assert index.decode(index.encode(record)) == record
    key = KeyRecord("0" * 32)
    assert index.decode_key(index.encode_key(key)) == key


@pytest.mark.parametrize(
    "state, is_over",
    [
        ("pending", False),
        ("running", False),
        ("waiting", False),
        ("completed", True),
        ("failed", True),
        ("cancelled", True),
    ],
)
def test_a_message_starts_a_new_run_only_after_the_end(state: str, is_over: bool) -> None:
    record = SessionRecord(id="s", agent="a", state=state)  # type: ignore[arg-type]
    assert record.is_over is is_over
