"""Commands in tasks: settings, sandboxes, output, and the executions that a process runs."""
