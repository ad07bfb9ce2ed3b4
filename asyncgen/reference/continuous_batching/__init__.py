"""Doors to the engine without an event loop: a manager, and `generate_batch`."""
