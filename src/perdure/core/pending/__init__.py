"""Pending calls: their record, the commands that settle them, and the events each produces."""
