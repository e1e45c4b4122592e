"""Sessions that are exported and imported through the public API."""

from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Conflict, NotFound, Refused, Runtime, tool
from perdure.testing import ScriptedModel


@tool(requires_approval=True)
def refund(cents: int) -> str:
    """Refund a customer."""
    return f"refunded {cents}"


@tool(requires_approval=True, redact=["token"])
def charge(token: str) -> str:
    """Charge a card."""
    return f"charged {token}"


def runtime(*, secret: bool = False) -> Runtime:
    call: dict[str, Any] = {"tool": "refund", "args": {"cents": 4}}
    if secret:
        call = {"tool": "charge", "args": {"token": "hush"}}
    model = ScriptedModel([{"calls": [call]}, {"text": "Done."}])
    return Runtime("memory:", agents=[Agent("clerk", model=model, tools=[refund, charge])])


async def test_a_waiting_session_continues_in_the_runtime_that_imported_it() -> None:
    async with runtime() as source, runtime() as target:
        session = source.session("order-1", agent="clerk")
        result = await session.run("Refund me.")
        assert await target.import_sessions(session.export()) == ["order-1"]
        await target.approve(result.pending[0].id, by="ann")
        imported = await target.session("order-1").run()
        assert (imported.state, imported.output) == ("completed", "Done.")
        assert (await session.get()).state == "waiting"


async def test_an_export_has_one_line_per_event_and_says_where_it_ends() -> None:
    async with runtime() as rt:
        session = rt.session("order-1", agent="clerk")
        await session.run("Refund me.")
        lines = [line async for line in session.export()]
        events = await session.events()
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in lines)
    assert sum('"seq":' in line for line in lines) == len(events)
    assert lines[-1].startswith('{"end":"order-1"')


async def test_an_import_reads_text_lines_and_files(tmp_path: Path) -> None:
    async with runtime() as source:
        session = source.session("order-1", agent="clerk")
        await session.run("Refund me.")
        lines = [line async for line in session.export()]
    text = "".join(lines)
    file = tmp_path / "export.jsonl"
    file.write_text(text)
    with file.open() as opened:
        for given in (text, text.encode(), lines, [line.encode() for line in lines], opened):
            async with runtime() as target:
                assert await target.import_sessions(given) == ["order-1"]
                assert (await target.session("order-1").get()).state == "waiting"


async def test_several_sessions_are_imported_in_their_order() -> None:
    async with runtime() as source, runtime() as target:
        lines: list[str] = []
        for name in ("b", "a"):
            session = source.session(name, agent="clerk")
            await session.run("Refund me.")
            lines += [line async for line in session.export()]
        assert await target.import_sessions(lines) == ["b", "a"]


async def test_an_export_leaves_secrets_out_and_cannot_be_imported_then() -> None:
    async with runtime(secret=True) as source, runtime() as target:
        session = source.session("order-1", agent="clerk")
        await session.run("Charge me.")
        without = [line async for line in session.export()]
        assert "hush" not in "".join(without)
        with pytest.raises(Refused) as refused:
            await target.import_sessions(without)
        assert refused.value.code == "IMPORT_REDACTED"
        assert await target.import_sessions(session.export(secrets=True)) == ["order-1"]


async def test_a_session_that_exists_is_not_changed_by_an_import() -> None:
    async with runtime() as rt:
        session = rt.session("order-1", agent="clerk")
        await session.run("Refund me.")
        with pytest.raises(Conflict) as refused:
            await rt.import_sessions(session.export())
        assert refused.value.code == "SESSION_EXISTS"


async def test_a_damaged_line_is_refused_by_its_number_and_nothing_is_written() -> None:
    async with runtime() as source, runtime() as target:
        session = source.session("order-1", agent="clerk")
        await session.run("Refund me.")
        lines = [line async for line in session.export()]
        with pytest.raises(Refused, match="line 2:"):
            await target.import_sessions([lines[0], "{", *lines[2:]])
        assert [result async for result in target.sessions()] == []


async def test_an_unknown_session_cannot_be_exported() -> None:
    async with runtime() as rt:
        with pytest.raises(NotFound):
            [line async for line in rt.session("nope").export()]


async def test_a_runtime_of_a_tenant_imports_only_sessions_of_that_tenant() -> None:
    async with runtime() as source, runtime() as target:
        session = source.tenant("acme").session("order-1", agent="clerk")
        await session.run("Refund me.")
        with pytest.raises(Refused, match="belongs to tenant 'acme'"):
            await target.tenant("other").import_sessions(session.export())
        assert await target.tenant("acme").import_sessions(session.export()) == ["order-1"]
