"""Conversations as the providers' requests want them, always acceptable.

`render` repairs what it is given first. Thinking and other private blocks go back only to the
provider and model that they came from, and only if nothing in their turn was touched.
"""

from perdure.core.providers.render import Format, render, rendered
from perdure.core.providers.target import Target

__all__ = ["Format", "Target", "render", "rendered"]
