"""Sessions that other programs wrote, as messages that can be repaired and gone on with.

What a file is, its content says. Nothing here judges a history: `repair` does that.
"""

from perdure.core.transfer.foreign.convert import ConvertedLog, convert
from perdure.core.transfer.foreign.detect import FORMATS, parse
from perdure.core.transfer.foreign.model import Foreign, ForeignMessage

__all__ = ["FORMATS", "ConvertedLog", "Foreign", "ForeignMessage", "convert", "parse"]
