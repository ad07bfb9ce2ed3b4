"""Checks and figures of `tests/device_check.py`, one line each."""
