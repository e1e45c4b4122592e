"""Commands, one module or package per group, loaded when one of its commands is typed.

None of them imports the runtime at its top: `backend.console` does, when a command runs. Modules
of a `LateGroup` may load anything else that their commands need.
"""
