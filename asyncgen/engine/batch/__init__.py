"""Run one forward pass over the rows of a step, and keep each row's sample."""
