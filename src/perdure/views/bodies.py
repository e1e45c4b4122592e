"""Bodies of requests about sessions and pending calls."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from perdure.views.base import wire_name
from perdure.views.literals import MAX_ID, DecisionKind, ReplyWord

# The ids and actors that `core.session.naming.check_id` accepts; escaped, so that the description
# of the API has no control characters in it.
ID_PATTERN: Final = r"^[^\u0000-\u001f\u007f-\u009f\u2028\u2029]*$"
IdText = Annotated[str, Meta(min_length=1, max_length=MAX_ID, pattern=ID_PATTERN)]
By = IdText

MAX_WAIT_S: Final = 60.0
# How long the caller waits until the session is parked: in seconds, or true for the maximum.
Wait = bool | Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] | None

MOST_DECISIONS: Final = 100  # of one request
MEDIA_TYPE: Final = r"^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+$"
BASE64: Final = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
MediaType = Annotated[str, Meta(max_length=200, pattern=MEDIA_TYPE)]


class Body(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=wire_name):
    """Body of a request; a key that it does not have is refused."""


class _AuthoredBody(Body, frozen=True, kw_only=True):
    """The author, if not the caller itself, and how long it waits until the session is parked."""

    by: By | None = None
    wait: Wait = None


# --- content of messages --------------------------------------------------------------------------


class TextIn(Struct, tag="text", tag_field="type", forbid_unknown_fields=True):
    """Part with text."""

    text: str


class FileIn(Struct, tag="file", tag_field="type", forbid_unknown_fields=True, kw_only=True):
    """Part with a file: its bytes in base64, a URL, or the digest of a file of the session."""

    media_type: MediaType = field(name="mediaType")
    name: Annotated[str, Meta(max_length=200)] | None = None
    data: Annotated[str, Meta(extra_json_schema={"pattern": BASE64})] | UnsetType = UNSET
    url: str | UnsetType = UNSET
    blob: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Refuse a trailing newline, which `$` in the pattern lets pass."""
        if self.media_type.endswith("\n"):
            raise ValueError("mediaType must not end with a newline")


ContentIn = str | list[TextIn | FileIn]
# The same where it must not be blank, which the service checks.
PromptIn = (
    Annotated[str, Meta(extra_json_schema={"pattern": r"\S"})]
    | Annotated[list[TextIn | FileIn], Meta(extra_json_schema={"minItems": 1})]
)


# --- sessions -------------------------------------------------------------------------------------


class NewSessionBody(_AuthoredBody, frozen=True, kw_only=True):
    """A session with its agent and perhaps a first message; without an id it gets a new one."""

    agent: IdText
    session_id: IdText | None = None
    message: PromptIn | None = None
    metadata: dict[str, Any] | None = None
    queue: str | None = None
    notify_url: Annotated[str, Meta(min_length=1, max_length=2000)] | None = field(
        default=None, name="notify_url"
    )
    notify_secret: Annotated[str, Meta(min_length=1, max_length=200)] | None = field(
        default=None, name="notify_secret"
    )


class WaitBody(Body, frozen=True, kw_only=True):
    """Request to wait until the session is parked."""

    wait: Wait = None


class CancelBody(Body, frozen=True, kw_only=True):
    """The reason of a cancellation; its background agents may go on."""

    reason: str | None = None
    keep_children: bool = False
    by: By | None = None


class ForkBody(Body, frozen=True, kw_only=True):
    """The last event that the fork copies, and the id of the fork."""

    at: Annotated[int, Meta(ge=1)] | None = None
    session_id: IdText | None = None


class CompactBody(_AuthoredBody, frozen=True, kw_only=True):
    """The number of last turns to keep, and additional instructions for the model."""

    keep: Annotated[int, Meta(ge=0)] | None = None
    instructions: Annotated[str, Meta(min_length=1)] | None = None


class MetadataBody(Body, frozen=True, kw_only=True):
    """Changes of metadata; null removes a key."""

    metadata: dict[str, Any]


class DecisionIn(Body, frozen=True, kw_only=True):
    """A decision as an object; it must name its call if several calls of the run are open."""

    kind: DecisionKind
    pending_id: IdText | None = None
    call_id: Annotated[str, Meta(min_length=1)] | None = None
    args: dict[str, Any] | None = None
    reason: str | None = None
    note: str | None = None
    output: Any = UNSET
    remember: bool | str = False
    all_tools: bool = False


class MessageBody(_AuthoredBody, frozen=True, kw_only=True):
    """A message; with the task id of a run that waits for an approver it is a reply."""

    content: PromptIn | None = None
    task_id: IdText | None = None
    context_id: IdText | None = None
    decision: ReplyWord | DecisionIn | None = None


class ContentMessage(_AuthoredBody, frozen=True, kw_only=True):
    """A message; with the task id of a run that waits for an approver its text is a reply."""

    content: PromptIn
    task_id: IdText | None = None
    context_id: IdText | None = None


class DecisionMessage(_AuthoredBody, frozen=True, kw_only=True):
    """A reply with a decision, to the run that waits for it."""

    task_id: IdText
    decision: ReplyWord | DecisionIn
    content: PromptIn | None = None
    context_id: IdText | None = None


# --- pending calls --------------------------------------------------------------------------------


class ApproveBody(_AuthoredBody, frozen=True, kw_only=True):
    """Arguments that replace stored ones, a note, and a permission to remember.

    `remember` is true for exactly this call, or a rule such as `shell:cmd=ls*`; a rule that covers
    every tool is refused without `allTools`.
    """

    args: Mapping[str, Any] | None = None
    note: str | None = None
    remember: bool | str = False
    all_tools: bool = False


class DenyBody(_AuthoredBody, frozen=True, kw_only=True):
    """The reason of a denial, and a denial to remember, as for an approval."""

    reason: str | None = None
    remember: bool | str = False
    all_tools: bool = False


class RespondBody(_AuthoredBody, frozen=True, kw_only=True):
    """The answer to a question, or an output instead of running the call: any JSON."""

    output: Any


class _DecisionItem(Body, frozen=True, kw_only=True, tag_field="decision"):
    """The call that a decision is about."""

    pending_id: IdText


class _RememberedItem(_DecisionItem, frozen=True, kw_only=True):
    """A decision that can be remembered for the rest of the session."""

    remember: bool | str = False
    all_tools: bool = False


class ApproveItem(_RememberedItem, frozen=True, kw_only=True, tag="approve"):
    """Approval of one call."""

    note: str | None = None


class EditItem(_RememberedItem, frozen=True, kw_only=True, tag="edit"):
    """Approval of one call with changed arguments."""

    args: Annotated[dict[str, Any], Meta(min_length=1)]
    note: str | None = None


class DenyItem(_RememberedItem, frozen=True, kw_only=True, tag="deny"):
    """Denial of one call."""

    reason: str | None = None


class RespondItem(_DecisionItem, frozen=True, kw_only=True, tag="respond"):
    """Answer to one question, or an output instead of running the call."""

    output: Any


DecisionItem = ApproveItem | EditItem | DenyItem | RespondItem


class DecisionsBody(Body, frozen=True, kw_only=True):
    """Decisions about several calls, of which all are recorded or none."""

    decisions: Annotated[list[DecisionItem], Meta(min_length=1, max_length=MOST_DECISIONS)]
    by: By | None = None


class ResultIn(Body, frozen=True, kw_only=True):
    """The result of a deferred tool; its default title is the name of the tool."""

    output: Any
    title: str | None = None
    metadata: Mapping[str, Any] | None = None


class ResultBody(_AuthoredBody, frozen=True, kw_only=True):
    """The result of one call."""

    pending_id: IdText
    result: ResultIn


class ErrorBody(_AuthoredBody, frozen=True, kw_only=True):
    """The failure of one call."""

    pending_id: IdText
    error: str


class CallbackBody(Body, frozen=True, kw_only=True):
    """Exactly one of a result, an error, and a progress report."""

    pending_id: IdText | None = None
    type: Literal["result", "error", "progress"] | None = None
    result: ResultIn | UnsetType = UNSET
    error: str | UnsetType = UNSET
    percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    message: str | None = None
    id: IdText | None = None  # of a progress report
    sequence: Annotated[int, Meta(ge=0)] | None = None


class CallbackResult(Body, frozen=True, kw_only=True):
    """Callback with the result of a call."""

    result: ResultIn
    type: Literal["result"] = "result"


class NamedCallbackResult(CallbackResult, frozen=True, kw_only=True):
    """The same, which names the call."""

    pending_id: IdText


class CallbackError(Body, frozen=True, kw_only=True):
    """Callback with the error of a call."""

    error: str
    type: Literal["error"] = "error"


class NamedCallbackError(CallbackError, frozen=True, kw_only=True):
    """The same, which names the call."""

    pending_id: IdText


class CallbackProgress(Body, frozen=True, kw_only=True):
    """Callback with the progress of a call."""

    type: Literal["progress"]
    percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    message: str | None = None
    id: IdText | None = None
    sequence: Annotated[int, Meta(ge=0)] | None = None


class NamedCallbackProgress(CallbackProgress, frozen=True, kw_only=True):
    """The same, which names the call."""

    pending_id: IdText
