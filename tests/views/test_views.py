"""Views: names on the wire by one rule, every field in JSON, and nothing bound leaves."""

import copy
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import get_type_hints

import msgspec
import pytest
from tests.support.http_shop import agent, parked

from perdure import Runtime
from perdure.views import (
    bodies,
    calls,
    events,
    findings,
    health,
    sessions,
    task_bodies,
    tasks,
    usage,
)
from perdure.views.base import Error, View, bind, bound, wire_name
from perdure.views.calls import CallTimes, PendingCall
from perdure.views.findings import SEVERITIES, Finding, Severity, worst_first
from perdure.views.sessions import Result
from perdure.views.usage import Usage

MODULES = (bodies, calls, events, findings, health, sessions, task_bodies, tasks, usage)
BODIES = {bodies.__name__, task_bodies.__name__}
# Words of the specification.
FIXED = {"input", "timeout", "timestamp", "pending_executions", "output", "error"}
FIXED |= {"notify_url", "notify_secret", "mediaType"}


def views() -> Iterator[type[msgspec.Struct]]:
    for module in MODULES:
        for value in vars(module).values():
            is_struct = isinstance(value, type) and issubclass(value, msgspec.Struct)
            if is_struct and value.__module__ == module.__name__:
                yield value


@pytest.mark.parametrize(
    "name, wire",
    [
        ("session_id", "sessionID"),
        ("created_at_ms", "createdAt"),
        ("callback_url", "callbackURL"),
        ("min_approvals", "minApprovals"),
        ("tool", "tool"),
    ],
)
def test_a_name_has_one_spelling_on_the_wire(name: str, wire: str) -> None:
    assert wire_name(name) == wire


@pytest.mark.parametrize("view", [v for v in views() if issubclass(v, View)], ids=str)
def test_every_field_of_a_view_is_named_by_the_rule(view: type[View]) -> None:
    for item in msgspec.structs.fields(view):
        assert item.encode_name in FIXED or item.encode_name == wire_name(item.name), item.name


@pytest.mark.parametrize("view", [v for v in views() if issubclass(v, View)], ids=str)
def test_every_instant_of_a_view_is_a_datetime_in_python(view: type[View]) -> None:
    fields = {item.name: item.type for item in msgspec.structs.fields(view)}
    assert [name for name in ("since", "until", "timestamp") if fields.get(name) is int] == []
    for name in (name for name in fields if name.endswith("_ms")):
        shown = getattr(view, name.removesuffix("_ms"))
        assert isinstance(shown, property), name
        assert shown.fget is not None
        wanted = datetime if fields[name] is int else datetime | None
        assert get_type_hints(shown.fget)["return"] == wanted, name


@pytest.mark.parametrize("view", list(views()), ids=str)
def test_every_view_is_frozen_and_described(view: type[msgspec.Struct]) -> None:
    assert view.__struct_config__.frozen or view.__name__ in ("TextIn", "FileIn")
    assert view.__doc__


def literals(kind: object) -> Iterator[msgspec.inspect.LiteralType]:
    if isinstance(kind, msgspec.inspect.LiteralType):
        yield kind
    elif isinstance(kind, msgspec.inspect.Metadata):
        yield from literals(kind.type)
    elif isinstance(kind, msgspec.inspect.UnionType):
        yield from (found for item in kind.types for found in literals(item))
    elif isinstance(kind, msgspec.inspect.CollectionType):
        yield from literals(kind.item_type)
    elif isinstance(kind, msgspec.inspect.DictType):
        yield from literals(kind.value_type)


@pytest.mark.parametrize("view", [v for v in views() if v.__module__ not in BODIES], ids=str)
def test_a_view_that_a_client_reads_accepts_words_that_a_newer_server_has(
    view: type[msgspec.Struct],
) -> None:
    kind = msgspec.inspect.type_info(view)
    assert isinstance(kind, msgspec.inspect.StructType)
    assert [item.name for item in kind.fields if list(literals(item.type))] == []


def test_a_body_accepts_only_the_words_of_this_version() -> None:
    with pytest.raises(msgspec.ValidationError, match="Invalid enum value 'fatal'"):
        msgspec.convert({"message": "m", "level": "fatal"}, task_bodies.LogLineIn)


async def test_a_session_and_its_calls_are_the_same_after_a_round_trip() -> None:
    async with Runtime("memory:", agents=[agent()]) as rt:
        await parked(rt)
        result = await rt.session("s").get()
    assert result.pending
    raw = msgspec.json.encode(result)
    assert msgspec.json.decode(raw, type=Result) == msgspec.structs.replace(result)
    shown = result.to_json()
    assert msgspec.json.encode(msgspec.json.decode(raw, type=Result)) == raw
    assert set(shown) == {item.encode_name for item in msgspec.structs.fields(Result)}
    for call in shown["pending"]:
        assert set(call) == {item.encode_name for item in msgspec.structs.fields(PendingCall)}


def call() -> PendingCall:
    return PendingCall(
        id="p_1",
        kind="tool",
        status="waiting",
        session_id="s",
        agent="a",
        tool="deploy",
        args={},
        call_id="c",
        effect_id="e",
        time=CallTimes(created=1_000),
    )


def test_what_is_bound_to_a_view_is_not_encoded_compared_copied_or_pickled() -> None:
    inside = bind(call(), _secret=lambda: "hush")
    assert inside == call()
    assert hash(inside) == hash(call())
    assert b"hush" not in msgspec.json.encode(inside)
    for other in (copy.copy(inside), msgspec.structs.replace(inside, tool="x")):
        assert bound(other, "_secret") is None
    assert bound(pickle.loads(pickle.dumps(call())), "_secret") is None  # noqa: S301 - our own


def test_instants_are_datetimes_in_python() -> None:
    assert call().created_at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert call().expires_at is None


def test_the_cost_of_requests_without_a_price_is_not_guessed() -> None:
    assert Usage.of({"requests": 1, "unpricedRequests": 1}).unpriced_requests is None
    partly = Usage.of({"requests": 2, "unpricedRequests": 1, "cost": 0.5})
    assert (partly.cost, partly.unpriced_requests) == (0.5, 1)


def test_an_error_becomes_an_exception_with_its_code_and_hint() -> None:
    error = Error(message="too long", code="X", hint="shorten it")
    raised = error.to_exception()
    assert (str(error), raised.code, raised.hint) == ("too long", "X", "shorten it")
    assert Error.of(raised) == error


def test_the_worst_finding_comes_first_and_equal_ones_keep_their_order() -> None:
    severities: tuple[Severity, ...] = ("ok", "error", "waiting", "warning", "error")
    found = [
        Finding(code=f"C{number}", severity=severity, subject="s", text="")
        for number, severity in enumerate(severities)
    ]
    assert [item.code for item in worst_first(tuple(found))] == ["C1", "C4", "C3", "C2", "C0"]
    assert {item.severity for item in found} == set(SEVERITIES)


def background() -> tasks.BackgroundTask:
    waiting = tasks.WaitingApproval(
        pending_id="p_1",
        kind="approval",
        tool="refund",
        prompt=None,
        approvers=("ana",),
        missing_approvals=2,
    )
    return tasks.BackgroundTask(
        id="bg_1",
        name="tides",
        status="running",
        agents=("researcher",),
        tenant="",
        created_at_ms=1_000,
        updated_at_ms=2_000,
        agent="researcher",
        description="tides",
        session_id="c",
        parent=None,
        ancestry=(),
        resume_count=0,
        waiting_for=(waiting,),
        pending=(call(),),
    )


def shared() -> tasks.SandboxTask:
    return tasks.SandboxTask(
        id="t",
        name="n",
        status="running",
        owner="system",
        metadata={"x": [1]},
        agents=("a",),
        result=None,
        tenant="",
        host="h",
        sandbox="none",
        created_at_ms=1_000,
        updated_at_ms=2_000,
    )


def test_a_list_of_tasks_is_the_same_after_a_round_trip() -> None:
    page = tasks.TaskPage(tasks=(shared(), background()), count=2)
    assert msgspec.json.decode(msgspec.json.encode(page), type=tasks.TaskPage) == page
    first, second = page.to_json()["tasks"]
    assert (first["kind"], second["kind"]) == ("sandbox", "background")
    assert (first["createdAt"], first["execution"]) == (1_000, None)
    assert second["waitingFor"][0]["missingApprovals"] == 2
    assert page.tasks[0].updated_at == datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)


def test_a_task_with_more_fields_is_read_as_a_task_too() -> None:
    detached = tasks.DetachedAgent(**msgspec.structs.asdict(shared()), agent_id="a", detached=False)
    raw = msgspec.json.encode(detached)
    assert msgspec.json.decode(raw, type=tasks.DetachedAgent) == detached
    assert msgspec.json.decode(raw, type=tasks.SandboxTask) == shared()
