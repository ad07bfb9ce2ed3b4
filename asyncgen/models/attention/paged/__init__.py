"""Attention over pages: one kernel or several for the rows of a step, by what the device has."""
