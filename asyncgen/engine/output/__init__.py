"""Turn sampled tokens into events: exact text, finish reasons, usage and timing."""
