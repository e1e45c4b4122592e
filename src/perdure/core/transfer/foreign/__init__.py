"""Sessions that other programs wrote, as messages that can be repaired and gone on with.

What a file is, its content says. Nothing here judges a history: `repair` does that.
"""

from perdure.core.transfer.foreign.convert import Told, told
from perdure.core.transfer.foreign.detect import FORMATS, parse
from perdure.core.transfer.foreign.model import Foreign, Said

__all__ = ["FORMATS", "Foreign", "Said", "Told", "parse", "told"]
