"""The sandbox bwrap: what the program bubblewrap is given, and how its processes are watched."""

from perdure.sandbox.bwrap.sandbox import BwrapSandbox

__all__ = ["BwrapSandbox"]
