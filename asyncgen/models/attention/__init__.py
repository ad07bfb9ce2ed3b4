"""Attention of models: over a dense cache, over pages, and from a decoder to its encoder."""
