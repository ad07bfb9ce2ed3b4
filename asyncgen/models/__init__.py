"""Modules that compute a network: decoder layers, attention, mixers, and their kernels."""
