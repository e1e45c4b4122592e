"""Pure functions that make every decision of perdure: no await, clock, randomness or I/O."""
