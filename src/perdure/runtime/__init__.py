"""The engine and everything that awaits tools, models, stores and approvers."""
