"""Text that tells the model what an approver changed in a call, and the approver's note.

It precedes the result of the call wherever a log becomes messages, so that the stored result stays
what the tool returned. Each wording is fixed: model requests must not change between two readings.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.log.events import Content
from perdure.core.log.redaction import mask_arguments

EDITED: Final = (
    "The user changed the arguments of this call; what follows is the outcome of {tool} with "
    "{arguments}."
)
APPROVED: Final = "The user approved this call."
NOTE: Final = " Note from the user: {note}"


class Approvals(Struct, frozen=True):
    """Changes and notes of the approvals of one call."""

    changes: Mapping[str, Any] = {}
    notes: tuple[str, ...] = ()

    def add(self, kind: str, changes: Mapping[str, Any] | None, note: str | None) -> "Approvals":
        """Return it with one more decision; only approvals count."""
        if kind not in ("approve", "edit"):
            return self
        return replace(self.add_note(note), changes={**self.changes, **(changes or {})})

    def add_note(self, note: str | None) -> "Approvals":
        """Return it with the note of one more approver, unless that is empty or known already.

        The last of several approvals is both a vote and the decision.
        """
        text = (note or "").strip()
        is_new = text and text not in self.notes
        return replace(self, notes=(*self.notes, text)) if is_new else self

    def text(self, tool: str, params: Mapping[str, Any], redact: Sequence[str]) -> str | None:
        """Return the text for the model; None if nothing was changed or noted."""
        ran = {**params, **self.changes}
        is_edited = ran != params
        if not is_edited and not self.notes:
            return None
        visible = json.dumps(mask_arguments(ran, redact), ensure_ascii=False)
        happened = EDITED.format(tool=tool, arguments=visible) if is_edited else APPROVED
        return happened + (NOTE.format(note="; ".join(self.notes)) if self.notes else "")


def approval_text(
    call: events.ToolCall, decisions: Sequence[events.Decision | events.Vote]
) -> str | None:
    """Return the text that precedes the result of a call; None for most calls."""
    approvals = Approvals()
    for decision in decisions:
        if isinstance(decision, events.Vote):
            approvals = approvals.add_note(decision.note)
        else:
            approvals = approvals.add(decision.kind, decision.args, decision.note)
    return approvals.text(call.tool, call.params, call.redact)


def preceded_by(text: str | None, content: Content) -> Content:
    """Return the content of a result after the text about its approval."""
    if text is None:
        return content
    if isinstance(content, str):
        return f"{text}\n\n{content}" if content else text
    return [{"type": "text", "text": text}, *content]
