"""Fork, export, import and adoption of sessions."""
