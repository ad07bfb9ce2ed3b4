"""Weights of 4 and 8 bits: two layouts that serve all formats, and how formats become them."""
