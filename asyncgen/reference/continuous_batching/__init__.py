"""Serve requests without an event loop: a manager, and ``generate_batch``."""
