"""What perdure decides, as pure functions: no await, no clock, no randomness, no I/O."""
