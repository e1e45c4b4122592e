"""Outgoing webhooks: the outbox, deliveries, and the HTTP POST."""
