"""Public address of a runtime: its URL, and the secrets that sign webhooks to it."""

from dataclasses import dataclass, field

from perdure.core.webhooks import signatures
from perdure.errors import Refused


@dataclass(frozen=True, slots=True)
class PublicAddress:
    """URL where submitters post results, and the secrets that sign what they post."""

    url: str | None = None
    webhook_secret: str | None = field(default=None, repr=False)
    former_secrets: tuple[str, ...] = field(default=(), repr=False)  # still accepted

    @property
    def webhook_secrets(self) -> tuple[str, ...]:
        """The secrets that are accepted; none without a webhook_secret."""
        return () if self.webhook_secret is None else (self.webhook_secret, *self.former_secrets)

    def accepted_secrets(self, pending_id: str) -> list[str]:
        """Return the secrets that may sign a message about one call: its own, or the server's."""
        derived = [signatures.derive_secret(secret, pending_id) for secret in self.webhook_secrets]
        return [*derived, *self.webhook_secrets]

    def callback_url(self, pending_id: str) -> str | None:
        """Return where the result of a call may be posted; None without a public URL."""
        return signatures.callback_url(self.url, pending_id)

    def callback_secret(self, pending_id: str) -> str:
        """Return the secret that signs the result of one call; it is derived, never stored."""
        if self.webhook_secret is None:
            raise Refused(
                "there is no webhook_secret to derive a callback secret from",
                code="NO_WEBHOOK_SECRET",
                hint="pass Runtime(webhook_secret=…), or set server.webhook_secret in YAML",
            )
        return signatures.derive_secret(self.webhook_secret, pending_id)

    @property
    def notify_secret(self) -> str | None:
        """The secret that signs deliveries to receivers without a secret of their own.

        Never the webhook secret itself: a delivery from here must not pass as one to here.
        """
        if self.webhook_secret is None:
            return None
        return signatures.derive_secret(self.webhook_secret, "notify")
