"""Repair of conversations: turns any list into a conversation that every provider accepts.

`repair` is total and pure: it never raises, never changes its input, and returns valid messages
unchanged. It never drops a pair of call and result, and texts keep their order.

A history may have messages of Anthropic, of OpenAI (chat messages or Responses items), of perdure,
or any mixture: a history in one shape keeps it, a mixture is rewritten in Anthropic's shape.
"""

from perdure.core.conversation.repair.fixes import LOST_START
from perdure.core.conversation.repair.incremental import (
    Canonical,
    IncrementalCanonical,
    IncrementalRepair,
)
from perdure.core.conversation.repair.model import Issue
from perdure.core.conversation.repair.rewrite import RepairResult, canonical, find_errors, repair
from perdure.core.conversation.repair.wire_keys import sendable, without_origin

__all__ = [
    "LOST_START",
    "Canonical",
    "IncrementalCanonical",
    "IncrementalRepair",
    "Issue",
    "RepairResult",
    "canonical",
    "find_errors",
    "repair",
    "sendable",
    "without_origin",
]
