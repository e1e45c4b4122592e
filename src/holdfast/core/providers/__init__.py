"""Conversations as the providers' requests want them, always acceptable.

`render` repairs what it is given first. Thinking and other private blocks go back only to the
provider and model that they came from, and only if nothing in their turn was touched.
"""

from holdfast.core.providers.render import Format, render, rendered
from holdfast.core.providers.target import Target

__all__ = ["Format", "Target", "render", "rendered"]
