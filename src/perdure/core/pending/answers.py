"""Answers to questions and approvals in words: checked against what the question accepts."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from perdure.core.json_values import is_equal, schema_defect, schema_problems
from perdure.core.pending.record import PendingRecord
from perdure.errors import Refused
from perdure.views.literals import ReplyWord

MAX_CHOICES: Final = 100
_SHOWN: Final = 5


def check_question(schema: Any, choices: Any) -> None:
    """Raise Refused for a schema or choices that no answer could be checked against."""
    if choices is not None:
        is_list = isinstance(choices, Sequence) and not isinstance(choices, str)
        if not is_list or not 1 <= len(choices) <= MAX_CHOICES:
            raise _invalid_question(f"choices must be a list of 1 to {MAX_CHOICES} values")
    if schema is not None and (defect := schema_defect(schema)):
        raise _invalid_question(f"schema is not a JSON schema: {defect}")
    try:
        msgspec.json.encode((schema, choices))
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise _invalid_question(f"schema and choices must be JSON: {error}") from error


def _invalid_question(text: str) -> Refused:
    return Refused(
        text, code="QUESTION_INVALID", hint='choices=["yes", "no"] or schema={"type": "integer"}'
    )


def check_answer(record: PendingRecord, answer: Any) -> None:
    """Raise Refused, which names what is wrong, for an answer that does not fit the question."""
    if record.choices is not None and not any(is_equal(answer, item) for item in record.choices):
        raise Refused(
            f"{answer_text(answer)!r} is not one of the choices: {choices_text(record.choices)}",
            code="ANSWER_INVALID",
            hint="answer with one of them, exactly as written",
            details={"choices": record.choices},
        )
    problems = [] if record.schema is None else schema_problems(answer, record.schema)
    if problems:
        lines = [f"{path or 'the answer'} {problem}" for path, problem in problems]
        raise Refused(
            f"the answer does not fit the schema: {'; '.join(lines[:_SHOWN])}",
            code="ANSWER_INVALID",
            hint=f"schema: {json.dumps(record.schema, ensure_ascii=False)}",
            details={"problems": lines, "schema": record.schema},
        )


def parse_answer(text: str, schema: Mapping[str, Any] | None, choices: Sequence[Any] | None) -> Any:
    """Return a typed text as the answer to a question: as text if that fits, else as JSON.

    A choice may also be given by its number, as prompts list them from 1 on.
    """
    stripped = text.strip()
    if choices:
        match = next((item for item in choices if answer_text(item) == stripped), None)
        is_number = match is None and stripped.isascii() and stripped.isdigit()
        if is_number and 1 <= int(stripped) <= len(choices):
            return choices[int(stripped) - 1]
        return text if match is None else match
    if schema is None or not schema_problems(text, schema):
        return text
    try:
        return msgspec.json.decode(stripped.encode())
    except (msgspec.MsgspecError, UnicodeError):
        return text


def answer_text(answer: Any) -> str:
    """Return an answer as the model reads it: text unchanged, anything else as JSON."""
    return answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()


def choices_text(choices: Sequence[Any]) -> str:
    """Return the choices as one line."""
    return ", ".join(answer_text(choice) for choice in choices)


WORDS: Final[dict[str, ReplyWord]] = {
    "approve": "approve",
    "yes": "approve",
    "y": "approve",
    "deny": "deny",
    "no": "deny",
    "n": "deny",
}


def parse_decision(text: str) -> ReplyWord | None:
    """Return the decision if the whole text is one of WORDS, ignoring case and blanks; else None.

    A text that only contains such a word ("do not approve") decides nothing.
    """
    return WORDS.get(text.strip().casefold())
