"""Layers that keep a state of each text: their arithmetic, and the states of each row."""
