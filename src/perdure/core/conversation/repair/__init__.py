"""Repair of conversations: any list in, a conversation that every provider takes out.

`repair` is total and pure: it never raises, never changes what it is given, and what is valid
comes back equal. No completed pair of call and result is ever dropped; texts keep their order.

Histories may be Anthropic's, OpenAI's (chat messages or Responses items), our own messages, or
any mixture with anything: a history in one shape keeps it, a mixture becomes Anthropic-shaped.
"""

from perdure.core.conversation.repair.fixes import LOST_START
from perdure.core.conversation.repair.incremental import (
    Canonical,
    IncrementalCanonical,
    IncrementalRepair,
)
from perdure.core.conversation.repair.model import Issue
from perdure.core.conversation.repair.rewrite import Repaired, canonical, errors_of, repair

__all__ = [
    "LOST_START",
    "Canonical",
    "IncrementalCanonical",
    "IncrementalRepair",
    "Issue",
    "Repaired",
    "canonical",
    "errors_of",
    "repair",
]
