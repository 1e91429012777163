"""What was decided and why, with bytes, and what had no effect: read-only."""
