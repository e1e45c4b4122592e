"""What is printed while an answer comes."""

from typing import Any

import pytest

from perdure.cli.settings import Settings
from perdure.cli.terminal import live as module
from perdure.cli.terminal.findings import pending_line
from perdure.cli.terminal.live import LivePrinter
from perdure.cli.terminal.terminal import Terminal
from perdure.views.events import Delta, DeltaKind, Event


def event(type_: str, **data: Any) -> Event:
    return Event(seq=1, type=type_, at_ms=1, data=data, pos=1, session_id="s")


def delta(kind: DeltaKind, text: str, call_id: str | None = None) -> Delta:
    return Delta(session_id="s", turn=1, kind=kind, text=text, call_id=call_id)


ANSWER = event("assistant", content="I pay.")


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> LivePrinter:
    """Somebody watches."""
    monkeypatch.setattr(Terminal, "is_live", property(lambda _: True))
    return LivePrinter(Terminal(Settings()))


def test_the_arguments_of_each_call_are_seen_as_they_come(
    live: LivePrinter, capsys: pytest.CaptureFixture[str]
) -> None:
    for item in (
        delta("text", "I "),
        delta("text", "pay."),
        delta("args", '{"order": ', "c1"),
        delta("args", "991}", "c1"),
        delta("args", '{"order": 992}', "c2"),
        ANSWER,
    ):
        live.print_item(item)
    told = capsys.readouterr().out
    assert told == 'I pay.\n  → {"order": 991}\n  → {"order": 992}\n'


def test_long_arguments_are_cut(
    live: LivePrinter, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LONGEST_ARGS", 7)
    for text in ('{"text"', ": ", '"long"}'):
        live.print_item(delta("args", text, "c1"))
    live.print_item(ANSWER)
    assert capsys.readouterr().out == '  → {"text"…\nI pay.\n'


def test_where_nobody_watches_only_events_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = LivePrinter(Terminal(Settings()))
    quiet.print_item(delta("args", '{"order": 991}', "c1"))
    quiet.print_item(ANSWER)
    assert capsys.readouterr().out == "I pay.\n"


@pytest.mark.parametrize(
    "answers, text",
    [
        ({}, ""),
        ({"choices": ["red", "blue", 5]}, " (red or blue or 5)"),
        (
            {"schema": {"type": "integer"}},
            ' (JSON of the schema {"type": "integer"})',
        ),
    ],
)
def test_a_question_shows_which_answers_it_accepts(answers: dict[str, Any], text: str) -> None:
    pending = {"tool": "pick", "kind": "question", "prompt": "Which?", **answers}
    assert pending_line(pending, None, 0) == f"⏸ asks: Which?{text}"


def test_a_call_is_printed_once_when_only_a_result_can_move_it(
    live: LivePrinter, capsys: pytest.CaptureFixture[str]
) -> None:
    """A deferred call after its start; that of an external tool at once."""

    call = {"callID": "c", "pendingID": "p"}
    live.print_item(event("pending", kind="tool", tool="upload", external=True, **call))
    assert capsys.readouterr().out == "⏳ upload() waits for its result\n"
    live.print_item(event("pending", kind="tool", tool="deploy", **call))
    assert capsys.readouterr().out == ""
    live.print_item(event("progress", returned=True, externalRef="r", **call))
    assert capsys.readouterr().out == "⏳ deploy() waits for its result (external ref r)\n"


def test_an_open_prompt_stays_the_last_line(
    live: LivePrinter, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal(Settings())
    terminal.open_prompt("approve? ")
    terminal.print("✓ a")
    terminal.print("✓ b")
    terminal.close_prompt()
    terminal.print("next")
    erase = "\r\x1b[K"
    assert capsys.readouterr().out == (f"approve? {erase}✓ a\napprove? {erase}✓ b\napprove? next\n")
