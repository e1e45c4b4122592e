"""Forms for questions and approvals: what a client shows to a person, and what an answer means.

A form of the protocol is flat: text, numbers, booleans and choices of text. The same forms are
input requests of a task, input requests of a call, and requests of the older protocol.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from perdure.core.json_values import is_equal
from perdure.core.literals import DecisionKind
from perdure.core.pending.commands import Approve, Decide, Deny, Respond
from perdure.core.pending.policy import possible_decisions
from perdure.core.pending.record import PendingRecord
from perdure.errors import Refused
from perdure.runtime.diagnosis.calls import own_prompt
from perdure.runtime.diagnosis.texts import clean
from perdure.serve.mcp.access import Caller
from perdure.serve.mcp.toolbox import Json

ANSWER: Final = "answer"
DECISION: Final = "decision"
REASON: Final = "reason"
ARGUMENT: Final = "args."  # begins the names of fields that change arguments
_OFFERED: Final[tuple[DecisionKind, ...]] = ("approve", "edit", "deny")
_ACTIONS: Final = ("accept", "decline", "cancel")
_COMMON: Final = ("title", "description")
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {  # of a field, by its type
    "string": (*_COMMON, "minLength", "maxLength", "format"),
    "number": (*_COMMON, "minimum", "maximum"),
    "integer": (*_COMMON, "minimum", "maximum"),
    "boolean": _COMMON,
}
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {  # of values that are not booleans
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (),
}
_FORMATS: Final = ("email", "uri", "date", "date-time")


class Form:
    """Form about one pending call for one person; `parameters` is the schema of its tool."""

    def __init__(
        self, record: PendingRecord, caller: Caller, parameters: Mapping[str, Any] | None = None
    ) -> None:
        self.record = record
        self._caller = caller
        self._fields = _argument_fields(record, parameters or {})
        kinds = possible_decisions(record, caller.name, caller.principal.role)
        self._decisions = [
            kind for kind in _OFFERED if kind in kinds and (kind != "edit" or self._fields)
        ]
        self._may_respond = "respond" in kinds

    @property
    def is_useful(self) -> bool:
        """True if the person may answer the question, or let the call run: not only deny it."""
        if self.record.kind == "question":
            return self._may_respond
        return any(kind != "deny" for kind in self._decisions)

    # --- what is shown ------------------------------------------------------------------------

    @property
    def request(self) -> Json:
        """The request for input, as both eras of the protocol have it."""
        params = {"mode": "form", "message": self.message, "requestedSchema": self.schema}
        return {"method": "elicitation/create", "params": params}

    @property
    def message(self) -> str:
        """The question, with everything that an approver must know; secret arguments are masked."""
        record = self.record.redacted
        if record.kind == "question":
            return clean(record.prompt or str(record.input.get("question", _NO_QUESTION)))
        parts = [record.prompt or f"The agent {record.agent} asks for approval of {record.tool}."]
        if own_prompt(record.tool, record.prompt) or not record.prompt:
            parts.append(f"{record.tool}: {_json_text(record.input)}")
        if record.details:
            parts.append(f"Details: {_json_text(record.details)}")
        return clean("\n".join(parts))

    @property
    def schema(self) -> Json:
        """The fields that the person fills in."""
        if self.record.kind == "question":
            return _question_schema(self.record)
        fields: Json = {DECISION: {"type": "string", "enum": list(self._decisions)}}
        if "edit" in self._decisions:
            text = "approve runs the call as it is, edit with the arguments below."
            fields[DECISION]["description"] = text
            fields |= self._fields
        fields[REASON] = {"type": "string", "description": "Why, if you deny it."}
        return {"type": "object", "properties": fields, "required": [DECISION]}

    # --- what is answered ---------------------------------------------------------------------

    def command(self, response: Any) -> Decide | None:
        """Return the command that a response means; None for a form that was not accepted.

        Clients without a person decline forms by themselves, so that this decides nothing.
        Raises Refused INPUT_INVALID.
        """
        if not isinstance(response, Mapping) or response.get("action") not in _ACTIONS:
            raise self._invalid(f"action must be one of {', '.join(_ACTIONS)}")
        if response["action"] != "accept":
            return None
        content = response.get("content")
        if not isinstance(content, Mapping):
            raise self._invalid("content must be an object")
        if self.record.kind == "question":
            caller = self._caller
            return Respond(caller.name, caller.via, self._output(content), caller.principal.role)
        return self._decision(content)

    def _decision(self, content: Mapping[str, Any]) -> Decide:
        by, via, role = self._caller.name, self._caller.via, self._caller.principal.role
        match content.get(DECISION):
            case "approve":
                return Approve(by, via, role=role)
            case "edit":
                return Approve(by, via, self._changes(content) or None, role=role)
            case "deny":
                reason = content.get(REASON)
                return Deny(by, via, reason if isinstance(reason, str) else None, role=role)
            case _:
                raise self._invalid(f"{DECISION} must be one of {', '.join(self._decisions)}")

    def _changes(self, content: Mapping[str, Any]) -> Json:
        """Return the arguments that the person changed."""
        values = {
            name.removeprefix(ARGUMENT): content[name]
            for name in self._fields
            if content.get(name) is not None
        }
        before = self.record.input
        return {
            name: value
            for name, value in values.items()
            if name not in before or not is_equal(before[name], value)
        }

    def _output(self, content: Mapping[str, Any]) -> Any:
        if _flat_form(self.record.schema) is not None:
            return dict(content)
        # A client may show a form of its own: what the person filled in is the answer.
        answer = content.get(ANSWER, dict(content))
        if not isinstance(answer, str) or _takes_text(self.record):
            return answer
        try:
            return json.loads(answer)
        except ValueError:
            raise self._invalid(f"{ANSWER} must be JSON, such as {_example(self.record)}") from None

    def _invalid(self, text: str) -> Refused:
        return Refused(
            f"the response to {self.record.id} is not valid: {text}",
            code="INPUT_INVALID",
            hint="send {action, content}, with the fields of requestedSchema in content",
        )


_NO_QUESTION: Final = "The agent has a question."


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _argument_fields(record: PendingRecord, parameters: Mapping[str, Any]) -> Json:
    """Return a field for each argument that a flat form can show; secret ones are left out."""
    fields: Json = {}
    for name, schema in parameters.get("properties", {}).items():
        field = None if name in record.redact else _field(schema)
        if field is None:
            continue
        value = record.input.get(name)
        default = {"default": value} if _fits(value, field) else {}
        fields[ARGUMENT + name] = {**field, "title": name, **default}
    return fields


def _fits(value: Any, field: Mapping[str, Any]) -> bool:
    """Return whether a value can be the default of a field."""
    if isinstance(value, bool):
        return bool(field["type"] == "boolean")
    return isinstance(value, _TYPES[field["type"]]) and value in field.get("enum", [value])


def _field(schema: Any) -> Json | None:
    """Return the field of a flat form for a schema; None if it has another form."""
    if not isinstance(schema, Mapping):
        return None
    variants = [item for item in schema.get("anyOf", [{}]) if item.get("type") != "null"]
    if len(variants) != 1:
        return None
    merged = {**schema, **variants[0]}
    kind, choices = str(merged.get("type")), _choices(merged)
    if kind not in _KEYS or (choices is not None and not _are_texts(choices)):
        return None
    if choices is not None:
        more = {key: merged[key] for key in _COMMON if key in merged}
        return {"type": "string", "enum": list(choices), **more}
    field = {"type": kind, **{key: merged[key] for key in _KEYS[kind] if key in merged}}
    if field.get("format", "uri") not in _FORMATS:
        del field["format"]
    return field


def _choices(schema: Mapping[str, Any]) -> Sequence[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    choices: Sequence[Any] | None = schema.get("enum")
    return choices


def _are_texts(values: Sequence[Any]) -> bool:
    return all(isinstance(item, str) for item in values)


def _question_schema(record: PendingRecord) -> Json:
    """Return the question's own schema as a flat form, or a form with one field for the answer."""
    form = _flat_form(record.schema)
    if form is not None:
        return form
    field: Json = {"type": "string"}
    if record.choices is not None:
        texts = [item if _takes_text(record) else _json_text(item) for item in record.choices]
        field = {"type": "string", "enum": texts}
    elif record.schema is not None:
        own = _field(record.schema)
        text = f"JSON that fits the schema {_json_text(record.schema)}"
        field = {"type": "string", "description": text} if own is None else own
    return {"type": "object", "properties": {ANSWER: field}, "required": [ANSWER]}


def _takes_text(record: PendingRecord) -> bool:
    """Return whether a text is the answer itself, and not JSON of it."""
    if record.choices is not None:
        return _are_texts(record.choices)
    return record.schema is None or _field(record.schema) is not None


def _example(record: PendingRecord) -> str:
    return _json_text(record.choices[0] if record.choices else {})


def _flat_form(schema: Mapping[str, Any] | None) -> Json | None:
    """Return the schema of an object as a form; None if a part of it is not flat."""
    if schema is None or schema.get("type") != "object" or not schema.get("properties"):
        return None
    fields = {name: _field(item) for name, item in schema["properties"].items()}
    if any(field is None for field in fields.values()):
        return None
    return {"type": "object", "properties": fields, "required": list(schema.get("required", ()))}
