"""Terminal output and prompts."""
