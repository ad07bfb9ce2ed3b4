"""What `tests/device_check.py` finds out about a device: checks and figures, a line each."""
