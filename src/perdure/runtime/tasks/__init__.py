"""The engine of tasks: lifecycle, registry, layers of files, locks, hooks and checkpoints."""
