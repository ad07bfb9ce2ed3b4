"""Serve requests that cannot share a step: they take turns beside the batch."""
