"""Forms for questions and approvals: what a client shows to a person, and what an answer means.

A form of the protocol is flat: text, numbers, booleans and choices of text. The same forms are
input requests of a task, input requests of a call, and requests of the older protocol.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from perdure.core.json_values import is_equal
from perdure.core.pending.record import PendingRecord
from perdure.errors import Refused
from perdure.findings.texts import clean
from perdure.runtime.diagnosis.calls import own_prompt
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.serve.mcp.toolbox import Json
from perdure.serve.schemas import Schema, plain_schema
from perdure.views.bodies import ApproveItem, DecisionItem, DenyItem, EditItem, RespondItem
from perdure.views.literals import DecisionKind

ANSWER: Final = "answer"
DECISION: Final = "decision"
REASON: Final = "reason"
APPROVE_CHANGED: Final = "approve_changed"  # with the arguments of the first approval
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
        # All approve the same arguments: those of the first approval.
        self._agreed = record.votes[0].args if record.votes else None
        self._fields = {} if record.votes else _argument_fields(record, parameters or {})
        kinds = caller.decisions(record)
        self._decisions = _offered(kinds, bool(self._agreed), bool(self._fields))
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
        if record.votes:
            names, args = " and ".join(vote.by for vote in record.votes), record.votes[0].args
            parts.append(f"Approved by {names}{f' with {_json_text(args)}' if args else ''}.")
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
        elif APPROVE_CHANGED in self._decisions:
            text = f"{APPROVE_CHANGED} runs the call with what {self.record.votes[0].by} changed."
            fields[DECISION]["description"] = text
        fields[REASON] = {"type": "string", "description": "Why, if you deny it."}
        return {"type": "object", "properties": fields, "required": [DECISION]}

    # --- what is answered ---------------------------------------------------------------------

    def decision(self, response: Any) -> DecisionItem | None:
        """Return the decision that a response means; None for a form that was not accepted.

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
            return RespondItem(pending_id=self.record.id, output=self._output(content))
        return self._approval(content)

    def _approval(self, content: Mapping[str, Any]) -> DecisionItem:
        name, args = self.record.id, self._changes(content)
        match content.get(DECISION):
            case "edit" if args:
                return EditItem(pending_id=name, args=args)
            case "approve" | "edit":
                return ApproveItem(pending_id=name)
            case decision if decision == APPROVE_CHANGED and self._agreed:
                return EditItem(pending_id=name, args=self._agreed)
            case "deny":
                reason = content.get(REASON)
                return DenyItem(pending_id=name, reason=reason if isinstance(reason, str) else None)
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


def _offered(kinds: Sequence[DecisionKind], is_changed: bool, has_fields: bool) -> list[str]:
    """Return the decisions of a form; what an earlier approver changed has a name of its own.

    So the answer to a form that was shown before that approval cannot mean it.
    """
    if is_changed:
        names = {"edit": APPROVE_CHANGED, "deny": "deny"}
        return [name for kind, name in names.items() if kind in kinds]
    return [kind for kind in _OFFERED if kind in kinds and (kind != "edit" or has_fields)]


_NO_QUESTION: Final = "The agent has a question."


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _argument_fields(record: PendingRecord, parameters: Mapping[str, Any]) -> Json:
    """Return a field for each argument that a flat form can show; secret ones are left out."""
    fields: Json = {}
    for name, schema in parameters.get("properties", {}).items():
        field = None if name in record.redact else _field(schema, parameters)
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


def _field(schema: Any, root: Schema) -> Json | None:
    """Return the field of a flat form for a schema in `root`; None if it has another form."""
    plain = plain_schema(schema, root)
    kind, choices = str(plain.get("type")), _choices(plain)
    if kind not in _KEYS or (choices is not None and not _are_texts(choices)):
        return None
    if choices is not None:
        more = {key: plain[key] for key in _COMMON if key in plain}
        return {"type": "string", "enum": list(choices), **more}
    field = {"type": kind, **{key: plain[key] for key in _KEYS[kind] if key in plain}}
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
        own = _field(record.schema, record.schema)
        text = f"JSON that fits the schema {_json_text(record.schema)}"
        field = {"type": "string", "description": text} if own is None else own
    return {"type": "object", "properties": {ANSWER: field}, "required": [ANSWER]}


def _takes_text(record: PendingRecord) -> bool:
    """Return whether a text is the answer itself, and not JSON of it."""
    if record.choices is not None:
        return _are_texts(record.choices)
    return record.schema is None or _field(record.schema, record.schema) is not None


def _example(record: PendingRecord) -> str:
    return _json_text(record.choices[0] if record.choices else {})


def _flat_form(schema: Mapping[str, Any] | None) -> Json | None:
    """Return the schema of an object as a form; None if a part of it is not flat."""
    if schema is None or schema.get("type") != "object" or not schema.get("properties"):
        return None
    fields = {name: _field(item, schema) for name, item in schema["properties"].items()}
    if any(field is None for field in fields.values()):
        return None
    return {"type": "object", "properties": fields, "required": list(schema.get("required", ()))}
