"""Decide when a generation ends: documented criteria, stop strings, cancels, and plain checks
for all.
"""
