"""Sessions that other programs wrote, as messages that can be repaired and gone on with.

What a file is, its content says. Nothing here judges a history: `repair` does that.
"""

from holdfast.core.foreign.detecting import FORMATS, parse
from holdfast.core.foreign.found import Foreign, Said
from holdfast.core.foreign.telling import Told, told

__all__ = ["FORMATS", "Foreign", "Said", "Told", "parse", "told"]
