"""The provider and model that a request goes to, and the content that may be sent there."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Block = dict[str, Any]
Message = dict[str, Any]
CONTINUE: Final = "Continue."
EMPTY: Final = "[This conversation is empty.]"
CLOSED: Final = "[The results were received.]"
_PRIVATE_TO: Final = {"reasoning": "openai"}  # all other private blocks are Anthropic's


@dataclass(frozen=True, slots=True)
class Target:
    """A provider and model; `files` has the base64 of stored files by their digest."""

    provider: str
    model: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    thinking: bool = False

    def may_have(self, message: Message, block: Block) -> bool:
        """Report whether a private block of an unchanged message may be sent there."""
        home = _PRIVATE_TO.get(block["type"], "anthropic")
        origin = (message.get("provider", home), message.get("model"))
        return origin == (self.provider, self.model)

    def native(self, message: Message, *, of_any_model: bool = False) -> list[Any] | None:
        """Return the native form of a response, if the target sent it and may get it back."""
        native = message.get("native")
        is_own = message.get("provider") == self.provider
        is_own = is_own and (of_any_model or message.get("model") == self.model)
        return native if is_own and isinstance(native, list) else None

    def source(self, block: Block) -> Block:
        """Return the source of an image or document with its bytes; empty if they are gone."""
        source: Block = block["source"]
        if source["type"] != "blob":
            return source
        data = self.files.get(source["blob"])
        if data is None:
            return {}
        return {"type": "base64", "media_type": source["media_type"], "data": data}


def is_private(block: Block) -> bool:
    """Report whether a block is of use only to the model that sent it."""
    return block["type"] not in _SHARED


def unavailable_text(block: Block) -> Block:
    """Return the text that replaces a file that cannot be sent."""
    source = block.get("source")
    media_type = source.get("media_type") if isinstance(source, dict) else None
    name = block.get("title") or media_type or block["type"]
    return {"type": "text", "text": f"[{name}: not available here]"}


def decode_text(data: str) -> str | None:
    """Decode a text from base64; None if it is not text."""
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, ValueError):
        return None


_SHARED: Final = frozenset(
    {"text", "tool_use", "tool_result", "image", "document", "search_result"}
)
