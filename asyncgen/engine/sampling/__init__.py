"""From logits to tokens: many rows at once, each with parameters of its own."""
