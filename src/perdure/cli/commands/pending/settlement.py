"""`perdure pending respond`, `result`, `error` and `cancel`: one call gets its outcome."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from perdure.cli.backend.console import Console, with_api
from perdure.cli.commands.continuation import continue_session, print_left
from perdure.cli.commands.option_types import file_text, json_object, json_value, text_or_stdin
from perdure.cli.commands.pending.calls import find_call
from perdure.cli.commands.pending.group import Options, pending, settle_options
from perdure.cli.recent import remember_session
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import call_text, line, plural, value_text
from perdure.core.json_values import UNKNOWN_ARGUMENT
from perdure.core.pending.answers import parse_answer
from perdure.core.pending.record import Verb
from perdure.errors import Refused
from perdure.views.calls import DecidedCall, PendingCall

_DONE: Final = {
    "approve": "approved",
    "deny": "denied",
    "respond": "answered",
    "result": "recorded the result of",
    "error": "recorded the error of",
    "cancel": "cancelled",
}
_METHODS: Final = {"result": "submit_result", "error": "submit_error"}


def _output_options(text_help: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Add the options of which one is the output: as text, as JSON, or as a file."""

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        for name, kind, metavar, text in (
            ("--output-file", file_text, "PATH", "The text of this file, however long."),
            ("--output-json", json_value, "JSON", "The same as JSON; - reads it from stdin."),
            ("--output", text_or_stdin, "TEXT", f"{text_help} - reads it from stdin."),
        ):
            command = click.option(name, type=kind, metavar=metavar, help=text)(command)
        return command

    return decorate


def _take_output(options: Options) -> tuple[Any, bool]:
    """Take the output from the one option that has it; True for text that a person typed."""
    text, file, value = (options.pop(name) for name in ("output", "output_file", "output_json"))
    if sum(item is not None for item in (text, value, file)) != 1:
        raise click.UsageError("give one of --output, --output-json and --output-file")
    return (text if file is None else file, True) if value is None else (value.value, False)


@pending.command()
@_output_options(
    "The answer, or the output. If the question has a schema that text does not fit: JSON."
)
@settle_options
def respond(settings: Settings, pending_id: str, **options: Any) -> int:
    """Answer a question, or supply an output instead of running a call."""
    output, is_typed = _take_output(options)

    def answer(call: PendingCall) -> Options:
        typed = parse_answer(output, call.schema, call.choices) if is_typed else output
        return {"output": typed}

    return settle(settings, "respond", pending_id, options, answer)


@pending.command()
@_output_options("The output of the call.")
@click.option("--title", metavar="TEXT", help="Record this title with the result.")
@click.option("--metadata", type=json_object, metavar="JSON", help="Record this with the result.")
@settle_options
def result(
    settings: Settings, pending_id: str, title: str | None, metadata: Options | None, **options: Any
) -> int:
    """Submit the result of a call that ran elsewhere."""
    output, _ = _take_output(options)
    fields = {"output": output, "title": title, "metadata": metadata}
    return settle(settings, "result", pending_id, options, lambda _: fields)


@pending.command()
@settle_options
@click.argument("message", type=text_or_stdin)
def error(settings: Settings, pending_id: str, message: str, **options: Any) -> int:
    """Submit an error, the MESSAGE, for a call that failed elsewhere; - reads it from stdin."""
    return settle(settings, "error", pending_id, options, lambda _: {"error": message})


@pending.command()
@settle_options
def cancel(settings: Settings, pending_id: str, **options: Any) -> int:
    """Cancel a call, and tell the model."""
    return settle(settings, "cancel", pending_id, options, lambda _: {})


def settle(
    settings: Settings,
    verb: str,
    typed_id: str,
    options: Options,
    fields_of: Callable[[PendingCall], Options],
) -> int:
    """Settle a call; then leave the session to a worker, or drive it here."""
    if options["wait"] and options["no_run"]:
        raise click.UsageError("--wait and --no-run cannot be combined")

    async def main(console: Console) -> int:
        before = await find_call(console, typed_id, Verb(verb))
        act = getattr(before, _METHODS.get(verb, verb))
        try:
            call: DecidedCall = await act(**fields_of(before), by=options["by"])
        except Refused as error:
            raise _with_set_options(error, before, settings) from error
        console.name_session(call.session_id)
        remember_session(settings, call.session_id)
        print_recorded(console, verb, before, call)
        if settings.as_json and not options["wait"]:
            console.print_json(settled_json(call))
        if call.missing_approvals:
            return 0  # nothing can continue yet
        if options["no_run"]:
            print_left(console, call)
            return 0
        return await continue_session(console, call, wait=options["wait"])

    return with_api(settings, main)


def settled_json(call: DecidedCall) -> Options:
    """Return a settled call as JSON."""
    shown = call.to_json()
    del shown["success"]
    return shown


def _with_set_options(error: Refused, call: PendingCall, settings: Settings) -> Refused:
    """Return an error about arguments with the options to type; another error as it is."""
    problems = error.details.get("arguments") if error.code == "ARGS_INVALID" else None
    if not problems:
        return error
    names = {item["name"].partition(".")[0]: item["problem"] for item in problems if item["name"]}
    unknown = [name for name, text in names.items() if text.startswith(UNKNOWN_ARGUMENT)]
    options = [f"--set {line(name)}=…" for name in names if name not in unknown]
    if options:
        error.hint = " ".join((settings.command("approve", call.id), *options))
    elif unknown:
        error.hint = f"leave out {', '.join(map(line, unknown))}; the call has " + ", ".join(
            map(line, call.args)
        )
    return error


def print_recorded(console: Console, verb: str, before: PendingCall, call: DecidedCall) -> None:
    """Print what was recorded about a call, by whom, and what an approver has changed."""
    done, decision, missing = _DONE[verb], call.decision, call.missing_approvals
    decided = call.votes[0] if missing else decision
    changes = {} if decided is None else decided.args or {}
    shown = call_text(call.tool, {**before.args, **changes})
    by = call.by if decision is None else decision.by
    author = f" by {line(by)}" if by else ""
    if missing:
        author = f" by {', '.join(line(vote.by) for vote in call.votes)}"
    more = f"; {plural(missing, 'more approval')} needed" if missing else ""
    if verb == "respond" and before.kind == "approval":
        more = f"; {line(call.tool)} was not run, and the model gets this answer"
    if call.duplicate:
        console.print(f"✓ already {done} {shown}{author}; nothing changed{more}")
        return
    edits = [
        f"{line(name)} {value_text(before.args.get(name))} → {value_text(value)}"
        for name, value in changes.items()
        if before.args.get(name) != value
    ]
    with_edits = f"  ({', '.join(edits)})" if edits else ""
    console.print(f"✓ {done} {shown}{author}{with_edits}{more}")


def decide_all(
    settings: Settings, verb: str, typed_ids: Sequence[str], choice: Options, options: Options
) -> int:
    """Decide about several calls in one commit; then continue each of their sessions."""

    async def main(console: Console) -> None:
        typed_calls = [await find_call(console, item, Verb(verb)) for item in typed_ids]
        before = {call.id: call for call in typed_calls}  # each once
        decisions: dict[str, Any] = dict.fromkeys(before, choice)
        calls = await console.api.decide(decisions, by=options["by"])
        for call in calls:
            console.name_session(call.session_id)
            print_recorded(console, verb, before[call.id], call)
        remember_session(settings, calls[-1].session_id)
        if settings.as_json:
            console.print_json({"decisions": [settled_json(call) for call in calls]})
        decided = [call for call in calls if not call.missing_approvals]
        for call in {(call.tenant, call.session_id): call for call in decided}.values():
            if options["no_run"]:
                print_left(console, call)
            else:
                await continue_session(console, call, wait=False)

    return with_api(settings, main)
