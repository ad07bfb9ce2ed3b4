"""Attention over pages: choose the kernels of a step's rows by what the device has."""
