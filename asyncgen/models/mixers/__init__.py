"""Layers that keep a state of each text: their arithmetic, and where rows have their states."""
