"""Serve every room: memory sizes, copies between devices, progress bars, failures of user code."""
