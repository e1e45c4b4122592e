"""Actions of `perdure tasks …`."""
