"""Sessions exported and imported: equal events, and whatever waited can still be answered."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Approval, Conflict, File, PendingCall, Refused, Runtime, tool
from perdure.core.pending.record import PendingRecord
from perdure.runtime.transfer.checksum import SessionChecksum
from perdure.runtime.transfer.exports import export_lines
from perdure.runtime.transfer.imports import ImportReport, import_lines
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel, crash_after
from perdure.testing.crash import Crashed

ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@tool(requires_approval=Approval(timeout="2h"))
def refund(cents: int) -> str:
    """Pay back."""
    ran.append(f"refund {cents}")
    return f"refunded {cents}"


@tool(deferred=True)
async def deploy(branch: str, call: PendingCall) -> dict[str, Any]:
    """Deploy."""
    await call.mark_started()
    return {"externalRef": "dep", "output": "started", "timeout": "1h", "estimatedDuration": 5}


@tool
def look() -> str:
    """Look."""
    ran.append("look")
    return "seen"


TURNS: list[dict[str, Any]] = [
    {"text": "I look.", "calls": [{"tool": "look"}]},
    {
        "text": "Two things.",
        "calls": [
            {"tool": "refund", "args": {"cents": 5}},
            {"tool": "deploy", "args": {"branch": "x"}},
            {"tool": "wait", "args": {"seconds": 60}},
        ],
    },
    {"text": "Done."},
]


def helper(**options: Any) -> Agent[str]:
    tools: list[Any] = [refund, deploy, look, "wait", "ask_user"]
    return Agent("helper", model=ScriptedModel(TURNS), tools=tools, **options)


async def exported(rt: Runtime, session: str = "s") -> list[bytes]:
    known = [one async for one in rt._service.sessions(None) if one.record.id == session]
    return [text async for text in export_lines(rt._resources.store, known[0])]


async def imported(rt: Runtime, lines: list[bytes], tenant: str | None = None) -> ImportReport:
    return await import_lines(rt._resources.store, lines, tenant)


async def records(rt: Runtime) -> list[PendingRecord]:
    found = [one async for one in rt._service.calls.list(None)]
    return sorted(found, key=lambda one: one.part_id)


@pytest.fixture
async def source(clock: ManualClock) -> AsyncIterator[Runtime]:
    """Where session `s` waits for an approval, a result and a timer."""
    one = helper(on_expire="keep")
    async with Runtime(MemoryStore(clock), agents=[one]) as rt:
        session = rt.session("s", agent=one, metadata={"order": 9})
        await session.run("Go", key="start")
        yield rt


def target(clock: ManualClock) -> Runtime:
    return Runtime(MemoryStore(clock), agents=[helper(on_expire="keep")])


async def test_an_export_imports_back_equal(source: Runtime, clock: ManualClock) -> None:
    lines = await exported(source)
    async with target(clock) as rt:
        report = await imported(rt, lines)
        assert [(one.session_id, one.events, one.pending) for one in report.sessions] == [
            ("s", (await source.session("s").get()).seq, 3)
        ]
        assert report.orphans == ()
        there, here = await source.session("s").events(), await rt.session("s").events()
        assert [one.to_json() for one in here] == [one.to_json() for one in there]
        assert await records(rt) == await records(source)
        assert (await rt.session("s").get()).to_json() == (
            await source.session("s").get()
        ).to_json()
        assert await exported(rt) == lines


async def test_the_first_line_names_the_session(source: Runtime) -> None:
    first, second, *_ = await exported(source)
    assert json.loads(first) == {
        "perdure": 1,
        "sessionID": "s",
        "tenant": "",
        "agent": "helper",
    }
    assert sorted(json.loads(second)) == ["data", "seq", "timestamp", "type"]


async def test_what_waited_is_answered_where_it_was_imported(
    source: Runtime, clock: ManualClock
) -> None:
    lines = await exported(source)
    async with target(clock) as rt:
        await imported(rt, lines)
        approval, result, _ = await records(rt)
        await rt.approve(approval.id, by="ana", args={"cents": 4})
        await rt.submit_result(result.id, "up")
        clock.advance("61s")
        ended = await rt.session("s").run()
        assert (ended.state, ended.output) == ("completed", "Done.")
    assert ran == ["look", "refund 4"]


async def test_the_log_alone_is_enough(source: Runtime, clock: ManualClock) -> None:
    """Without the entries only what they alone know is lost."""
    lines = [line for line in await exported(source) if not line.startswith(b'{"pending"')]
    lines = without_checksum(lines)
    async with target(clock) as rt:
        report = await imported(rt, lines)
        assert report.sessions[0].pending == 3
        kept, made = (await records(source))[0], (await records(rt))[0]
        assert (kept.on_expire, made.on_expire) == ("keep", "fail")
        await rt.approve(made.id, by="ana")


async def test_keys_are_remembered(source: Runtime, clock: ManualClock) -> None:
    lines = await exported(source)
    async with target(clock) as rt:
        await imported(rt, lines)
        before = (await rt.session("s").get()).seq
        await rt.session("s").run("Go", key="start")
        assert (await rt.session("s").get()).seq == before
        with pytest.raises(Conflict):
            await rt.session("s").send("Other", key="start")


async def test_deadlines_hold_and_expire(clock: ManualClock) -> None:
    one = helper()
    async with Runtime(MemoryStore(clock), agents=[one]) as source:
        await source.session("s", agent=one).run("Go")
        lines = await exported(source)
    async with target(clock) as rt:
        await imported(rt, lines)
        clock.advance("1h 1m")
        report = await rt.recover()
        assert [one.tool for one in report.expired] == ["deploy"]


async def test_a_deferred_call_that_is_kept_is_late_where_it_was_imported(
    source: Runtime, clock: ManualClock
) -> None:
    """S0.43"""
    lines = await exported(source)
    async with target(clock) as rt:
        await imported(rt, lines)
        clock.advance("1h 1m")
        assert (await rt.recover()).expired == ()
        deploy = next(one for one in await records(rt) if one.tool == "deploy")
        assert (deploy.is_open, deploy.late) == (True, True)
        assert (await rt.submit_result(deploy.id, "up")).status == "completed"


async def test_an_export_while_the_session_moves_on_is_not_one_of_a_damaged_session(
    source: Runtime,
) -> None:
    """G3: an entry that was read later than the log knows more than the events before it."""
    (known,) = [one async for one in source._service.sessions(None) if one.record.id == "s"]
    lines = export_lines(source._resources.store, known)
    begun = [await anext(lines), await anext(lines)]
    (call,) = [call async for call in source.pending(session="s") if call.tool == "refund"]
    await source.approve(call.id, by="ana")
    end = json.loads([*begun, *[line async for line in lines]][-1])
    assert (end["end"], "lost" in end) == ("s", False)


async def test_a_session_that_exists_is_never_changed(source: Runtime) -> None:
    lines = await exported(source)
    before = (await source.session("s").get()).seq
    with pytest.raises(Conflict) as caught:
        await imported(source, lines)
    assert caught.value.code == "SESSION_EXISTS"
    assert (await source.session("s").get()).seq == before


async def test_nothing_is_written_if_one_session_exists(
    source: Runtime, clock: ManualClock
) -> None:
    lines = await exported(source)
    other = [lines[0].replace(b'"s"', b'"other"'), lines[1], b'{"end":"other","events":1}']
    with pytest.raises(Conflict):
        await imported(source, [*other, *lines])
    assert [one.session_id async for one in source.sessions()] == ["s"]


async def test_a_deleted_session_can_be_imported_again(source: Runtime) -> None:
    lines = await exported(source)
    await source.session("s").delete()
    await imported(source, lines)
    assert len(await records(source)) == 3
    assert await exported(source) == lines


async def test_a_call_without_its_session_is_cancelled_as_an_orphan(
    source: Runtime, clock: ManualClock
) -> None:
    """S0.39, S0.67"""
    lines = await exported(source)
    calls = [line for line in lines if line.startswith(b'{"pending"')]
    stranger = [calls[0].replace(b'"sessionID":"s"', b'"sessionID":"gone"')]
    async with target(clock) as rt:
        report = await imported(rt, stranger)
        assert [one.session_id for one in report.orphans] == ["gone"]
        assert report.sessions == ()
        unknown = [calls[0].replace(b"p_", b"p_unknown")]
        report = await imported(rt, [*lines, *unknown])
        assert [one.id[:9] for one in report.orphans] == ["p_unknown"]
        assert len(await records(rt)) == 3


async def test_an_interrupted_call_is_told_where_it_was_imported(clock: ManualClock) -> None:
    """No driver here may take the number of the driver that was cut off there."""
    memory = MemoryStore(clock)
    with crash_after(commits=2):
        one = helper()
        with pytest.raises(Crashed):
            async with Runtime(memory, agents=[one]) as rt:
                await rt.session("s", agent=one).run("Go")
    assert ran == []
    clock.advance("1m")
    async with Runtime(memory) as rt:
        lines = await exported(rt)
    assert b"tool_started" in lines[-2]
    async with target(clock) as rt:
        await imported(rt, lines)
        await rt.session("s").run()
        told = [one.data for one in await rt.session("s").events() if one.type == "tool_result"]
        assert told[0]["interrupted"] is True


@pytest.mark.parametrize("commits", range(1, 15))
async def test_a_session_moves_from_wherever_a_crash_left_it(
    clock: ManualClock, commits: int
) -> None:
    """It ends as it would have ended, and nothing is done twice."""
    memory = MemoryStore(clock)
    with crash_after(commits=commits), suppress(Crashed):
        await _whole(memory, clock)
    clock.advance("1m")
    async with Runtime(memory) as rt:
        lines = await exported(rt)
    other = MemoryStore(clock)
    async with Runtime(other) as rt:
        await imported(rt, lines)
        assert await exported(rt) == lines
    async with Runtime(other, agents=[helper()]) as rt:
        ended = await _told(rt, clock, None)
        assert (ended.state, ended.output) == ("completed", "Done.")
    assert ran.count("look") <= 1
    assert ran.count("refund 5") <= 1


async def _whole(memory: MemoryStore, clock: ManualClock) -> None:
    one = helper()
    async with Runtime(memory, agents=[one]) as rt:
        await _told(rt, clock, one)


async def _told(rt: Runtime, clock: ManualClock, one: Agent[str] | None) -> Any:
    """From the message to the end, with all that people do on the way."""
    session = rt.session("s", agent=one)
    result = await (session.run("Go", key="start") if one else session.run())
    for call in result.pending:
        if call.kind == "approval":
            await rt.approve(call.id, by="ana")
        elif call.kind == "tool":
            await rt.submit_result(call.id, "up")
    clock.advance("61s")
    return await session.run()


async def test_files_go_with_the_session(clock: ManualClock) -> None:
    one = Agent("plain", model=ScriptedModel([{"text": "Nice."}]))
    async with Runtime(MemoryStore(clock), agents=[one]) as rt:
        await rt.session("s", agent=one).run(["See:", File("text/plain", data=b"hello")])
        lines = await exported(rt)
    *rest, blob, end = lines
    assert sorted(json.loads(blob)) == ["blob", "data"]
    async with Runtime(MemoryStore(clock)) as rt:
        with pytest.raises(Refused, match="that is missing"):
            await imported(rt, [*rest, end])
        with pytest.raises(Refused, match="not the bytes of"):
            await imported(rt, [*rest, blob.replace(b"aGVsbG8=", b"aGVsbG9o"), end])
        await imported(rt, lines)
        assert await exported(rt) == lines


async def test_a_file_that_was_cut_is_refused_wherever_that_was(source: Runtime) -> None:
    lines = await exported(source)
    await source.session("s").delete()
    for length in range(1, len(lines)):
        with pytest.raises(Refused, match="ends in the middle of session 's'"):
            await imported(source, lines[:length])
    await imported(source, lines)


async def test_tenants_stay_apart(source: Runtime, clock: ManualClock) -> None:
    lines = await exported(source)
    lines[0] = lines[0].replace(b'"tenant":""', b'"tenant":"acme"')
    lines = without_checksum(lines)
    async with target(clock) as rt:
        with pytest.raises(Refused, match="belongs to tenant 'acme'"):
            await imported(rt, lines, "other")
        await imported(rt, lines, "acme")
        assert (await rt.tenant("acme").session("s").get()).state == "waiting"


@pytest.mark.parametrize(
    "lines,why",
    [
        (
            ['{"seq":1,"type":"user","timestamp":1,"data":{}}'],
            "line 1: the line before it that names its session is missing",
        ),
        (["{"], "line 1: "),
        (["5"], "line 1: "),
        (['{"perdure":2,"sessionID":"s","agent":"a"}'], "line 1: format 2 is unknown"),
        (['{"perdure":1,"agent":"a"}'], "line 1: None cannot be a session id"),
        (['{"perdure":1,"sessionID":"s"}'], "line 1: None cannot be an agent name"),
        (['{"perdure":1,"sessionID":"s","agent":"a","more":1}'], "line 1: "),
        (['{"perdure":1,"sessionID":"s","agent":"a"}'] * 2, "line 2: session 's' is in the file"),
        (
            ['{"perdure":1,"sessionID":"s","agent":"a"}', '{"end":"s","events":0}'],
            "has no events",
        ),
        ([], "there is no session in the file"),
        (['{"perdure":1,"sessionID":"s","agent":"a"}', '{"end":"s","events":3}'], "line 2: 3 "),
        (
            [
                '{"perdure":1,"sessionID":"s","agent":"a"}',
                "",
                '{"seq":2,"type":"user","timestamp":1,"data":{"role":"user","content":"x"}}',
                '{"end":"s","events":1}',
            ],
            "line 4: event 1 of session 's' is missing",
        ),
        (
            [
                '{"perdure":1,"sessionID":"s","agent":"a"}',
                '{"seq":1,"type":"user","timestamp":1,"data":{"role":5}}',
            ],
            "line 2: an event of type 'user' cannot be read",
        ),
        (
            [
                '{"perdure":1,"sessionID":"s","agent":"a"}',
                '{"seq":1,"type":"mystery","timestamp":1,"data":[]}',
            ],
            "line 2: ",
        ),
    ],
)
async def test_a_file_that_is_none_is_refused_by_its_line(lines: list[str], why: str) -> None:
    async with Runtime("memory:") as rt:
        with pytest.raises(Refused) as caught:
            await imported(rt, [line.encode() for line in lines])
        assert why in caught.value.message
        assert caught.value.code == "IMPORT_INVALID"
        assert [one async for one in rt.sessions()] == []


async def test_from_one_database_to_another(source: Runtime, tmp_path: Path) -> None:
    lines = await exported(source)
    async with Runtime(f"sqlite:///{tmp_path}/h.db") as rt:
        await imported(rt, lines)
        assert await exported(rt) == lines


def without_checksum(lines: list[bytes]) -> list[bytes]:
    """The lines as a person edits them, or as an older perdure wrote them."""
    return [re.sub(rb',"checksum":"[^"]*"}$', b"}", line.rstrip()) for line in lines]


async def test_an_export_without_a_checksum_is_read(source: Runtime, clock: ManualClock) -> None:
    lines = await exported(source)
    older = without_checksum(lines)
    assert older[-1] != lines[-1].rstrip()
    async with target(clock) as rt:
        await imported(rt, older)
        assert await exported(rt) == lines


async def test_a_changed_value_anywhere_in_an_export_is_refused(
    source: Runtime, clock: ManualClock
) -> None:
    """G1"""
    lines = await exported(source)
    changes = [
        (b'"agent":"helper"', b'"agent":"other"'),  # the line that names the session
        (b'"content":"Go"', b'"content":"Stop"'),  # an event
        (b'"onExpire":"keep"', b'"onExpire":"fail"'),  # the entry of a call
        (b'"checksum":"', b'"checksum":"0'),
    ]
    async with target(clock) as rt:
        for old, new in changes:
            assert any(old in line for line in lines), old
            changed = [line.replace(old, new) for line in lines]
            with pytest.raises(Refused) as caught:
                await imported(rt, [*changed, *lines_of_another_session(lines)])
            assert caught.value.code == "IMPORT_CHANGED"
            assert f"line {len(lines)}: " in caught.value.message
            assert 'remove "checksum"' in (caught.value.hint or "")
        assert [one async for one in rt.sessions()] == []


def lines_of_another_session(lines: list[bytes]) -> list[bytes]:
    other = [lines[0].replace(b'"s"', b'"other"'), lines[1], b'{"end":"other","events":1}']
    return list(map(SessionChecksum().add, other))


async def test_lines_that_are_swapped_or_lost_are_refused(
    source: Runtime, clock: ManualClock
) -> None:
    *rest, first, second, end = await exported(source)
    assert first.startswith(b'{"pending"')
    async with target(clock) as rt:
        for lines in ([*rest, second, first, end], [*rest, first, end]):
            with pytest.raises(Refused, match="was changed after its export"):
                await imported(rt, lines)


async def test_an_export_with_a_byte_order_mark_and_other_line_ends_is_read(
    source: Runtime, clock: ManualClock
) -> None:
    lines = await exported(source)
    from_editor = [b"\xef\xbb\xbf" + lines[0], *lines[1:]]
    async with target(clock) as rt:
        await imported(rt, [line.replace(b"\n", b"\r\n") for line in from_editor])
        assert await exported(rt) == lines


async def test_events_after_the_end_of_a_session_are_refused(
    source: Runtime, clock: ManualClock
) -> None:
    lines = await exported(source)
    more = lines[1].replace(b'"seq":1', b'"seq":%d' % (json.loads(lines[-1])["events"] + 1))
    async with target(clock) as rt:
        with pytest.raises(Refused, match="that names its session is missing"):
            await imported(rt, [*lines, more])
