"""Declarations of families, plans of layers, and readers of a file's values; no torch."""
