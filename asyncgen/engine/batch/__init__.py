"""Run the shared batch: one forward pass over the rows of a step, then a token for each row."""
