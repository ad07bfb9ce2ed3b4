"""Pick tokens from logits: many rows at once, each with its own parameters."""
