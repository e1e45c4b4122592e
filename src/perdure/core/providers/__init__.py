"""Wire formats of model providers: requests that they always accept, and their streams.

`render` repairs the conversation first. Thinking and other private blocks go back only to the
provider and model that sent them, and only if their turn was not changed.
"""

from perdure.core.providers.catalog import Format
from perdure.core.providers.formats import render, render_canonical, stream_reader
from perdure.core.providers.target import Target

__all__ = ["Format", "Target", "render", "render_canonical", "stream_reader"]
