"""Attention as models see it: over a dense cache, over pages, and between two stacks."""
