"""Webhooks: the life of a delivery, and signatures."""
