"""Sessions written by other programs, read as messages that can be repaired and continued.

The content of a file determines its format. Nothing here validates a history: `repair` does that.
"""

from perdure.core.transfer.foreign.convert import ConvertedLog, convert, interrupted_results
from perdure.core.transfer.foreign.detect import FORMATS, parse
from perdure.core.transfer.foreign.model import ForeignMessage, ForeignSession

__all__ = [
    "FORMATS",
    "ConvertedLog",
    "ForeignMessage",
    "ForeignSession",
    "convert",
    "interrupted_results",
    "parse",
]
