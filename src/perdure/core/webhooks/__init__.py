"""Webhook deliveries and signatures."""
