"""Drafters: what guesses tokens ahead of the model that decides. One kind a file."""
