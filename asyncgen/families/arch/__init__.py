"""Architectures: one file a family, and the registry that finds them by ``model_type``."""
