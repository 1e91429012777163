"""The demonstration: a small GPT, real text, and training with and without a configuration."""
