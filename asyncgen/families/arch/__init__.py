"""Architectures: one file a family, and the table that finds them by ``model_type``."""
