"""The only room that awaits tools, models and people."""
