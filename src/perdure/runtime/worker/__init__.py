"""The worker loop: due sessions, expiry, retention, webhook delivery."""
