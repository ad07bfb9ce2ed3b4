"""Whole calls compared with transformers at float32, token for token."""
